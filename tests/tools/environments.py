"""An environment made of tools, for the tests of every door that leads to them."""

from typing import Any

from fastmcp import Context, FastMCP
from pydantic import TypeAdapter

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


class Scales(Basket):
    """A basket with tools that remember, and that validate something of their own."""

    def __init__(self) -> None:
        super().__init__()
        server = self.mcp_server
        assert server is not None

        @server.tool
        async def remember(thing: str, context: Context) -> list[str]:
            """Keep a thing in the session of the tools; says what is there. Glass does not stay."""
            if thing == "glass":
                TypeAdapter(float).validate_python(thing)
            kept = [*(await context.get_state("kept") or []), thing]
            await context.set_state("kept", kept)
            return kept

        @server.tool(title="Weigher", annotations={"readOnlyHint": True}, meta={"unit": "kg"})
        def weigh(grams: str) -> dict[str, float]:
            """Validates something of its own, and fails at it."""
            return {"kg": TypeAdapter(float).validate_python(grams) / 1000}
