"""The values of the session model: what a client, a socket and a server's session consist of."""

import enum
from typing import NamedTuple

__all__ = [
    "NEVER",
    "Chances",
    "Client",
    "Entry",
    "Fault",
    "History",
    "Job",
    "Line",
    "Reply",
    "Request",
    "Session",
    "State",
]

History = tuple[str, ...]
"""The actions an environment has run since its reset: its state, and what an observation shows of it."""


class Fault(enum.Enum):
    """A part of the protocol that can be left out, to show what it is for."""

    NO_NOTE = "a request enters the ledger with its outcome, not before it runs"
    NO_DIGEST = "the ledger does not compare a repeated id's contents"
    NO_PROCESS_CHECK = "a client works in a process that inherited it by os.fork"
    NO_ID_CHECK = "a client takes the next reply for its own, whatever its id"
    NO_STRAY_COUNT = "a client gives up whenever its session is taken over, also by a socket of its own"
    NO_COMPARISON = "a replay does not compare its observations with those of the first server"
    NEWEST_DROPPED = "the ledger drops any answer that it has no room for, also the newest"


class Request(NamedTuple):
    kind: str
    """`open`, `attach`, `step`, `fork` or `cancel`."""
    id: int = 0
    body: str = ""
    """The action of a step; the session's token, for `open` and `attach`."""
    ack: int = 0

    @property
    def digest(self) -> str:
        """Equal for equal contents. Actions that differ only in case have equal contents: so two clients can
        send the same, and the model can still tell whose it was."""
        return self.body.casefold()


class Reply(NamedTuple):
    kind: str
    """`session`, `end of stream`, `taken over`, or an outcome: `done`, `failed`, `timed out`, `cancelled`,
    `dropped`, `refused`, `lost`."""
    id: int = 0
    history: History = ()
    last_id: int = 0


class Line(NamedTuple):
    """A socket: what is on its way in either direction, in order."""

    server: int
    up: tuple[Request, ...] = ()
    down: tuple[Reply, ...] = ()
    is_up: bool = True
    """The server still reads it."""
    is_down: bool = True
    """The client still reads it."""
    token: str = ""
    """The session that the server serves on it."""


class Job(NamedTuple):
    """A request that has no outcome yet, and the sockets that wait for it."""

    request: Request
    lines: tuple[int, ...]
    has_run: bool = False
    failed: bool = False


class Entry(NamedTuple):
    """What the ledger keeps of a request."""

    id: int
    digest: str
    outcome: Reply | None = None


class Session(NamedTuple):
    token: str
    server: int
    history: History = ()
    ledger: tuple[Entry, ...] = ()
    newest: int = 0
    waiting: tuple[Job, ...] = ()
    running: Job | None = None
    is_usable: bool = True


class Client(NamedTuple):
    name: str
    token: str
    plan: tuple[str, ...]
    """The actions it will take; `fork` is one."""
    server: int = 0
    is_open: bool = False
    """The session exists: a new socket attaches to it."""
    line: int | None = None
    is_greeted: bool = False
    connections: int = 3
    """How many sockets it opens before it gives its session up for lost."""
    strays: int = 0
    """Sockets it has left, on which an `attach` may still be on its way."""
    last_id: int = 0
    waiting: Request | None = None
    seen: tuple[History, ...] = ()
    """The observation of each acknowledged step."""
    replayed: int | None = None
    """How many of them a new session has repeated; None unless it is replaying."""
    error: str = ""
    """The typed error that ended it."""

    @property
    def acknowledged(self) -> tuple[str, ...]:
        return tuple(history[-1] for history in self.seen)


class Chances(NamedTuple):
    """How often each thing may still go wrong."""

    cuts: int = 0
    failures: int = 0
    """Steps that run and then fail, or return what cannot be encoded."""
    deadlines: int = 0
    cancels: int = 0
    gives_up: int = 0
    """Clients that stop waiting for an answer, and go on."""
    expiries: int = 0
    deaths: int = 0
    process_forks: int = 0
    takeovers: int = 0
    """Second holders: other clients that attach with the same token."""
    drops: int = 0
    """Answers that the ledger has no room for."""


NEVER = Chances()


class State(NamedTuple):
    clients: tuple[Client, ...]
    chances: Chances
    lines: tuple[Line, ...] = ()
    sessions: tuple[Session, ...] = ()
    second: str = "s1"
    """The action that the second holder takes."""
    is_dead: bool = False
    """Server 0 has died. Server 1 has not, and has no sessions but those opened on it."""
    wrong: str = ""
    """The promise that was just broken."""

    def session(self, token: str) -> Session | None:
        return next((session for session in self.sessions if session.token == token), None)

    def with_session(self, new: Session) -> "State":
        others = tuple(session for session in self.sessions if session.token != new.token)
        return self._replace(sessions=tuple(sorted((*others, new))))

    def with_line(self, number: int, new: Line) -> "State":
        return self._replace(lines=(*self.lines[:number], new, *self.lines[number + 1 :]))

    def with_client(self, new: Client) -> "State":
        return self._replace(clients=tuple(new if old.name == new.name else old for old in self.clients))

    def spend(self, chance: str) -> "State":
        left = getattr(self.chances, chance) - 1
        return self._replace(chances=self.chances._replace(**{chance: left}))
