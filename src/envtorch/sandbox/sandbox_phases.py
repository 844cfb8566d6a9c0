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
    SETTLING = "settling"
    """Its init has something to finish before the next request: to send the signal that stops a cancelled
    one, or to take in a forked interpreter."""
    LOST = "lost"
    """Its interpreter is gone. Files can still be read."""
    CLOSED = "closed"


_P = SandboxPhase
MOVES: Mapping[SandboxPhase, frozenset[SandboxPhase]] = {
    _P.READY: frozenset({_P.BUSY, _P.SETTLING, _P.LOST, _P.CLOSED}),
    _P.BUSY: frozenset({_P.READY, _P.CALLING, _P.SETTLING, _P.LOST, _P.CLOSED}),
    _P.CALLING: frozenset({_P.BUSY, _P.SETTLING, _P.LOST, _P.CLOSED}),
    _P.SETTLING: frozenset({_P.READY, _P.LOST, _P.CLOSED}),
    _P.LOST: frozenset({_P.CLOSED}),
    _P.CLOSED: frozenset(),
}
"""Where each phase may lead."""
