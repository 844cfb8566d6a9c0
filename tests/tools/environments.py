"""An environment made of tools, for the tests of every door that leads to them."""

from typing import Any

from fastmcp import FastMCP

from envtorch.mcp import MCPEnvironment
from envtorch.types import Observation, State


class Basket(MCPEnvironment):
    """Things go in; the reward is how many there are."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("basket")
        self.things: list[str] = []
        self._state = State(episode_id="none")

        @server.tool
        def put(thing: str) -> int:
            """Put a thing into the basket; says how many there are."""
            self.things.append(thing)
            return len(self.things)

        @server.tool
        def look() -> list[str]:
            """What is in the basket."""
            return self.things

        @server.tool
        def drop() -> str:
            """Always fails."""
            raise ValueError("it is glued on")

        super().__init__(server, rubric=lambda action, observation: float(len(self.things)))

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.things.clear()
        self._state = State(episode_id=episode_id or "an-episode")
        return Observation(reward=0.0)

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        self._state.step_count += 1
        return await super().step_async(action, timeout_s, **kwargs)

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"seen": str(action)})

    @property
    def state(self) -> State:
        return self._state
