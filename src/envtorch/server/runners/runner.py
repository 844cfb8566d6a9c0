"""What a runner is: the place where one environment lives, and the only way to call it there."""

from collections.abc import Callable
from typing import Any, Protocol

from envtorch.errors import EnvTorchError
from envtorch.protocol.calls import Call
from envtorch.protocol.host import EnvironmentHost

__all__ = ["Done", "Runner"]

Done = Callable[[Any, EnvTorchError | None], None]
"""Called on the event loop with a call's result, or with its error."""


class Runner(Protocol):
    """Makes the calls of one environment, one at a time, always in the same place."""

    name: str
    """The environment's class, by name."""
    has_tools: bool

    @property
    def host(self) -> EnvironmentHost | None:
        """The environment, where it lives in this process; else None."""

    @property
    def steps_together(self) -> EnvironmentHost | None:
        """The environment, where its `step_many` may be called right here; else None."""

    @property
    def ended(self) -> str | None:
        """Why no call can be made any more; None while one can."""

    def start(self, call: Call, done: Done) -> None:
        """Make a call. `done` is called once: before this returns, or later.

        The result of a `fork` is a list of runners, all or none.
        """

    def stop(self) -> bool:
        """Stop the call that runs; say whether the environment can be called again after that.

        A call that cannot be stopped runs on.
        """

    async def close(self) -> None:
        """Give back what the runner holds, after its last call."""
