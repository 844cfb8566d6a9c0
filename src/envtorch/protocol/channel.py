"""One session on a socket, as its client sees it: where it is, what was asked of it, and what arrived."""

import enum
import secrets
from collections.abc import Callable, Sequence

import msgspec

from envtorch.errors import EnvTorchError
from envtorch.protocol.batch import Columns
from envtorch.protocol.extended import NOTHING

__all__ = ["Arrived", "Channel", "ChannelPhase", "Request"]


class ChannelPhase(enum.Enum):
    """Where a channel's session is."""

    NEW = "new"
    """Not opened yet, or the server's answer to that has not arrived."""
    DETACHED = "detached"
    """On the server, without a socket."""
    HELD = "held"
    """On the current socket."""
    LOST = "lost"
    """Gone; a reset opens another."""
    CLOSED = "closed"
    """Closed by this client; a reset opens another."""


class Channel:
    """One session. Its token is chosen here, so that a repeated request to open it opens one session."""

    __slots__ = ("error", "phase", "token", "wait_s", "was_asked_for", "was_held")

    def __init__(self, wait_s: float, token: str | None = None) -> None:
        """With a `token`, the session exists already and is attached to."""
        self.token = token or secrets.token_urlsafe(24)
        self.phase = ChannelPhase.NEW if token is None else ChannelPhase.DETACHED
        self.wait_s = wait_s
        self.error: EnvTorchError | None = None
        """Why the session is lost."""
        self.was_asked_for = False
        """A server may have been asked to open the session."""
        self.was_held = False
        """The server may still have a lost session on this channel."""


class Request(msgspec.Struct, eq=False):
    """What was asked of one or more sessions, and how many of them still have to answer."""

    id: int
    kind: str
    channels: Sequence[int]
    data_of: Callable[[int], bytes | None]
    """The data for one channel, to send it again."""
    missing: int
    deadline: float
    limit_s: float
    """How long the caller waits in all, for the message of `TimedOut`."""
    timeout_s: float | None
    """The limit that the server keeps, if the caller gave one."""

    def late(self) -> str:
        """What the caller is told when nothing has arrived in time."""
        if self.timeout_s is None:
            return f"{self.kind} was not answered within {self.limit_s:g} s"
        margin_s = self.limit_s - self.timeout_s
        return (
            f"{self.kind} was not answered within {self.timeout_s:g} s, and in {margin_s:g} s more the "
            "server did not say so: it is stopped, too busy, or out of reach"
        )


class Arrived(msgspec.Struct, frozen=True):
    """What arrived for one or more sessions: columns for all of them, or one session's own reply or error."""

    channels: Sequence[int]
    type: str = "observation"
    id: int | None = None
    """The request that it answers."""
    columns: Columns | None = None
    payload: msgspec.Raw = NOTHING
    error: EnvTorchError | None = None
