"""The life of a session: an enum and a table.

starting ──> ready <──> busy
               │          │  the socket goes, or comes back
               v          v
           detached <─> adrift          any of them ──> closed
"""

import enum

from envtorch.errors import SessionLost

__all__ = ["Event", "Phase", "advance"]


class Phase(enum.StrEnum):
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


_TABLE: dict[tuple[Phase, Event], Phase] = {
    (Phase.STARTING, Event.OPENED): Phase.READY,
    (Phase.READY, Event.CALLED): Phase.BUSY,
    (Phase.BUSY, Event.ANSWERED): Phase.READY,
    (Phase.READY, Event.DETACHED): Phase.DETACHED,
    (Phase.BUSY, Event.DETACHED): Phase.ADRIFT,
    (Phase.DETACHED, Event.CALLED): Phase.ADRIFT,
    (Phase.ADRIFT, Event.ANSWERED): Phase.DETACHED,
    (Phase.DETACHED, Event.ATTACHED): Phase.READY,
    (Phase.ADRIFT, Event.ATTACHED): Phase.BUSY,
    **{(phase, Event.CLOSED): Phase.CLOSED for phase in Phase if phase is not Phase.CLOSED},
}


def advance(phase: Phase, event: Event) -> Phase:
    """The phase after `event`. Raises `SessionLost` for what cannot happen in this phase."""
    after = _TABLE.get((phase, event))
    if after is None:
        raise SessionLost(f"cannot {event.value} a session that is {phase.value}")
    return after
