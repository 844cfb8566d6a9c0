"""The life of a session: an enum and a table.

starting ──> ready <──> busy
               │          │  the socket goes, or comes back
               v          v
           detached <─> adrift          any of them ──> closed
"""

import enum

from envtorch.errors import SessionLost

__all__ = ["Event", "SessionPhase", "advance"]


class SessionPhase(enum.StrEnum):
    STARTING = "starting"
    """The environment is being built."""
    READY = "ready"
    """Somebody holds the session, and no call runs."""
    BUSY = "busy"
    """A call runs."""
    DETACHED = "detached"
    """Nobody holds the session; it waits to be taken up again."""
    ADRIFT = "adrift"
    """Nobody holds the session, and a call still runs."""
    CLOSED = "closed"
    """The environment is gone and the slot is free."""


class Event(enum.StrEnum):
    OPENED = "open"
    CALLED = "call"
    ANSWERED = "answer"
    DETACHED = "detach"
    ATTACHED = "attach"
    CLOSED = "close"


_TABLE: dict[tuple[SessionPhase, Event], SessionPhase] = {
    (SessionPhase.STARTING, Event.OPENED): SessionPhase.READY,
    (SessionPhase.READY, Event.CALLED): SessionPhase.BUSY,
    (SessionPhase.BUSY, Event.ANSWERED): SessionPhase.READY,
    (SessionPhase.READY, Event.DETACHED): SessionPhase.DETACHED,
    (SessionPhase.BUSY, Event.DETACHED): SessionPhase.ADRIFT,
    (SessionPhase.DETACHED, Event.CALLED): SessionPhase.ADRIFT,
    (SessionPhase.ADRIFT, Event.ANSWERED): SessionPhase.DETACHED,
    (SessionPhase.DETACHED, Event.ATTACHED): SessionPhase.READY,
    (SessionPhase.ADRIFT, Event.ATTACHED): SessionPhase.BUSY,
    **{
        (phase, Event.CLOSED): SessionPhase.CLOSED
        for phase in SessionPhase
        if phase is not SessionPhase.CLOSED
    },
}


def advance(phase: SessionPhase, event: Event) -> SessionPhase:
    """The phase after `event`. Raises `SessionLost` for what cannot happen in this phase."""
    after = _TABLE.get((phase, event))
    if after is None:
        raise SessionLost(f"cannot {event.value} a session that is {phase.value}")
    return after
