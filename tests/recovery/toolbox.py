"""An environment made of tools: one that remembers, one that fails, one that never answers the same."""

import time
from typing import Any

from fastmcp import FastMCP

from envtorch import create_app
from envtorch.mcp import MCPEnvironment
from envtorch.tools import CallToolAction, CallToolObservation
from envtorch.types import Observation, State


class Toolbox(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("toolbox")
        self._total = 0
        self._state = State()

        @server.tool
        def add(number: int) -> int:
            """Add a number to the total."""
            self._total += number
            return self._total

        @server.tool
        def fail() -> str:
            """Always fails."""
            raise ValueError("as it always does")

        @server.tool
        def now() -> int:
            """What the clock says."""
            return time.time_ns()

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self._total = 0
        self._state = State(episode_id=episode_id)
        return Observation()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise NotImplementedError("there are tools only")

    @property
    def state(self) -> State:
        return self._state


app = create_app(Toolbox, CallToolAction, CallToolObservation, sessions=10)
