"""The least a code executor does, whatever it is built on."""

from typing import Protocol, runtime_checkable

from .results import Result

__all__ = ["Executor"]


@runtime_checkable
class Executor(Protocol):
    """Runs an agent's code and keeps its state between runs. `Sandbox` is one."""

    @property
    def alive(self) -> bool:
        """Whether the state is still there."""
        ...

    def run(self, code: str, *, timeout_s: float | None = None) -> Result:
        """Run `code`; the outcome is in the result, whatever the code did."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...
