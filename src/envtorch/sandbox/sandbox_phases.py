"""The phases of a sandbox, as one table."""

import enum
from collections.abc import Mapping

__all__ = ["MOVES", "SandboxPhase"]


class SandboxPhase(enum.Enum):
    """What an open sandbox does."""

    READY = "ready"
    """Its interpreter waits for a request."""
    BUSY = "busy"
    """Its interpreter works on a request."""
    CALLING = "calling"
    """The code inside waits for a function of the owner's: it may be forked now."""
    STOPPING = "stopping"
    """The request was cancelled: the signal that stops the code may still be on its way."""
    LOST = "lost"
    """Its interpreter is gone. Files can still be read."""
    CLOSED = "closed"


_P = SandboxPhase
MOVES: Mapping[SandboxPhase, frozenset[SandboxPhase]] = {
    _P.READY: frozenset({_P.BUSY, _P.LOST, _P.CLOSED}),
    _P.BUSY: frozenset({_P.READY, _P.CALLING, _P.STOPPING, _P.LOST, _P.CLOSED}),
    _P.CALLING: frozenset({_P.BUSY, _P.STOPPING, _P.LOST, _P.CLOSED}),
    _P.STOPPING: frozenset({_P.READY, _P.LOST, _P.CLOSED}),
    _P.LOST: frozenset({_P.CLOSED}),
    _P.CLOSED: frozenset(),
}
"""Where each phase may lead."""
