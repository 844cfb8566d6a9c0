"""Who holds which session, and how many there may be: one register, kept by the master for all workers."""

from collections import Counter
from collections.abc import Sequence

from envtorch.server.sessions.remote_sessions import HeldByPeer
from envtorch.server.sessions.slots import Names, Slots

__all__ = ["Register"]

REMEMBERED = 20_000
"""How many names of lost sessions to remember, so that whoever asks for one is told what became of it."""


class Entry:
    """A session that lives, or is about to."""

    __slots__ = ("names", "worker")

    def __init__(self, worker: int, names: Names) -> None:
        self.worker = worker
        self.names = names


class Register:
    """Slots are taken under names, so that a session is opened once and found wherever it lives."""

    def __init__(self, capacity: int = 0) -> None:
        self.slots = Slots(capacity)
        self._entries: dict[str, Entry] = {}
        self._held: Counter[int] = Counter()
        self._lost: dict[str, str] = {}

    def held_by(self, worker: int) -> int:
        """How many sessions a worker has."""
        return self._held[worker]

    async def take(self, worker: int, names: Names, wait_s: float) -> None:
        """A slot for a session of this worker. Raises `HeldByPeer` when its token is another's."""
        known = self._entries.get(names.token)
        if known is not None and known.worker != worker:
            raise HeldByPeer(known.worker)
        entry = self._enter(worker, names)  # before the wait: whoever asks again must find who waits
        try:
            await self.slots.take(wait_s)
        except BaseException:
            self._strike(entry)
            raise

    async def take_together(self, worker: int, names: Sequence[Names]) -> None:
        """A slot for each of these sessions, or none."""
        await self.slots.take_together(names)
        for each in names:
            self._enter(worker, each)

    def free(self, worker: int, names: Names) -> None:
        """The session is gone, and its slot is free."""
        entry = self._entries.get(names.id)
        if entry is not None and entry.worker == worker:
            self._strike(entry)
            self.slots.free()

    def find(self, name: str) -> int | None:
        """The worker that holds the session of this id or token."""
        entry = self._entries.get(name)
        return entry.worker if entry is not None else None

    def fate(self, name: str) -> str | None:
        """What became of a session that was lost with its worker."""
        return self._lost.get(name)

    def lose(self, worker: int, how: str) -> int:
        """The worker is gone, and its sessions with it. Says how many those were.

        Whatever it still waited for must have been given up before.
        """
        entries = {entry for entry in self._entries.values() if entry.worker == worker}
        for entry in entries:
            self._strike(entry)
            self._lost.update(dict.fromkeys(entry.names, how))
            self.slots.free()
        while len(self._lost) > REMEMBERED:
            del self._lost[next(iter(self._lost))]
        return len(entries)

    def _enter(self, worker: int, names: Names) -> Entry:
        entry = Entry(worker, names)
        self._lost.pop(names.token, None)  # a client may choose the token of a session it lost
        self._held[worker] += 1
        self._entries[names.id] = self._entries[names.token] = entry
        return entry

    def _strike(self, entry: Entry) -> None:
        self._held[entry.worker] -= 1
        for name in entry.names:
            if self._entries.get(name) is entry:
                del self._entries[name]
