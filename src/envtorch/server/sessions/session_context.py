"""What a session needs of those around it: the socket that holds it, and the server."""

from typing import TYPE_CHECKING, Protocol

from envtorch.server.telemetry.metrics import Meter
from envtorch.server.telemetry.tracing import Span

if TYPE_CHECKING:
    from envtorch.recording.recorder import Recorder  # only a server that records loads it
    from envtorch.server.sessions.session import Session

__all__ = ["Holder", "Upkeep"]


class Holder(Protocol):
    """A socket that has taken a session up."""

    def lost(self, session: "Session") -> None:
        """Another socket has taken the session over."""


class Upkeep(Protocol):
    """What a session needs of the server around it."""

    meter: Meter
    draining: bool
    span: Span
    is_plain: bool
    """Whether a call needs nothing around it: nobody traces or records, and the server is not about to
    stop."""
    recorder: "Recorder | None"

    def forget(self, session: "Session") -> None:
        """The session is closed: its slot is free."""

    def busy(self, change: int) -> None:
        """That many more calls run."""
