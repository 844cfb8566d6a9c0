"""What a session needs of those around it: the socket that holds it, and the server."""

from typing import TYPE_CHECKING, Protocol

from envtorch.server.telemetry.metrics import Meter
from envtorch.server.telemetry.tracing import Span

if TYPE_CHECKING:
    from envtorch.recording.recorder import Recorder  # only a server that records loads it
    from envtorch.server.sessions.session import Session

__all__ = ["Holder", "SessionContext"]


class Holder(Protocol):
    """A socket that has attached to a session."""

    def lost(self, session: "Session") -> None:
        """Another socket has attached to the session."""

    def has_room(self) -> bool:
        """Whether another answer may be sent. If not, the session's `proceed` is called when it may."""


class SessionContext(Protocol):
    """The server, as its sessions see it."""

    meter: Meter
    draining: bool
    """Every call is refused."""
    finishing: bool
    """A call that would begin an episode is refused."""
    span: Span
    recorder: "Recorder | None"

    @property
    def stop_timeout_s(self) -> float:
        """How long a call may run on that nobody waits for any more."""

    def forget(self, session: "Session") -> None:
        """The session is closed: its slot is free."""
