"""One worker, as the master sees it: a process, a line to talk on, and a hatch for connections."""

import asyncio
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from typing import Any

from envtorch.errors import CapacityReached, ConfigurationError, from_wire
from envtorch.server.sessions.remote_sessions import HeldByPeer
from envtorch.server.sessions.slots import Names
from envtorch.server.workers.session_register import Register
from envtorch.server.workers.shared_counters import Page
from envtorch.server.workers.worker_messages import (
    Find,
    Found,
    Free,
    Full,
    Granted,
    HeldElsewhere,
    MessageLine,
    Note,
    Take,
    TakeTogether,
    Withdraw,
    WorkerPlan,
    WorkerReady,
    WorkerUnfit,
    send_plan,
)

__all__ = ["WorkerChild"]

MOST_IN_FLIGHT = 64
"""How many connections may be on their way to a worker that has not taken them yet."""

LAST_WORDS_S = 1.0

_START = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); "
    "from envtorch.server.workers.worker import main; main(*map(int, sys.argv[2:]))"
)


class WorkerChild:
    """Starts with `start`, is ready when `ready` is done, and is over when `ended` returns."""

    def __init__(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        line: MessageLine,
        hatch: socket.socket,
        page: Page,
        register: Register,
    ) -> None:
        self.ready: asyncio.Future[WorkerReady] = asyncio.get_running_loop().create_future()
        self._number = number
        self._process = process
        self._line = line
        self._hatch = hatch
        self._numbers = page.worker(number)
        self._page = page
        self._register = register
        self._handed = 0
        self._is_open = True
        self._takes: dict[int, asyncio.Task[None]] = {}
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def start(
        cls, plan: WorkerPlan, private: socket.socket, page: Page, register: Register
    ) -> "WorkerChild":
        """A fresh interpreter, in a group of its own: a Ctrl-C at the terminal is the master's affair.

        Raises `OSError` when the system has no memory, process or descriptor for it; then nothing is left.
        """
        numbers = page.worker(plan.worker)
        numbers.connections = numbers.received = 0
        with ExitStack() as unless_started:
            line_here, line_there = map(unless_started.enter_context, socket.socketpair())
            hatch_here, hatch_there = map(unless_started.enter_context, socket.socketpair())
            hatch_here.setblocking(False)
            descriptors = (line_there.fileno(), hatch_there.fileno(), private.fileno(), page.descriptor)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                _START,
                "\n".join(sys.path),
                *map(str, descriptors),
                pass_fds=descriptors,
                start_new_session=True,
            )
            unless_started.callback(_signal, process, signal.SIGKILL)
            line_there.close()
            hatch_there.close()
            send_plan(line_here, plan)
            line = await MessageLine.over(line_here)
            unless_started.pop_all()
        return cls(plan.worker, process, line, hatch_here, page, register)

    @property
    def process_id(self) -> int:
        return self._process.pid

    # Connections.

    @property
    def load(self) -> int:
        """What it has to care for: sessions, connections, and those on their way to it."""
        return self._in_flight + self._numbers.connections + self._register.held_by(self._number)

    @property
    def takes_connections(self) -> bool:
        return (
            self.ready.done()
            and not self.ready.cancelled()
            and self.ready.exception() is None
            and self._is_open
            and self._in_flight < MOST_IN_FLIGHT
        )

    @property
    def _in_flight(self) -> int:
        return self._handed - self._numbers.received

    def hand(self, connection: socket.socket) -> bool:
        """Give it a connection; False when it cannot take one now."""
        try:
            socket.send_fds(self._hatch, [b"c"], [connection.fileno()])
        except BlockingIOError:
            return False
        except OSError:  # it is gone, or about to be: `ended` will tell
            self._is_open = False
            return False
        self._handed += 1
        return True

    # Its life.

    def signal(self, number: signal.Signals) -> None:
        _signal(self._process, number)

    async def ended(self) -> int:
        """Wait for its end; then its sessions are lost, and its slots free. Says how it ended."""
        status = await self._process.wait()
        # What it said last may be why it ended. What it forked may still hold the line, and says nothing.
        await asyncio.wait({self._listening}, timeout=LAST_WORDS_S)
        self._listening.cancel()
        for take in self._takes.values():
            take.cancel()
        await asyncio.gather(*self._takes.values(), return_exceptions=True)
        self._register.lose(self._number, f"its worker ended {describe(status)}")
        self._page.taken = self._register.slots.taken
        self._line.close()
        self._hatch.close()
        if not self.ready.done():
            self.ready.set_exception(
                ConfigurationError(f"a worker ended {describe(status)} before it served")
            )
            self.ready.exception()  # whoever waits for it sees it; nobody need
        return status

    # What it says.

    async def _listen(self) -> None:
        async for note in self._line.notes():
            self._heed(note)
            self._page.taken = self._register.slots.taken

    def _heed(self, note: Note) -> None:
        register, number = self._register, self._number
        match note:
            case Take(call, names, wait_s):
                self._grant(call, register.take(number, names, wait_s))
            case TakeTogether(call, several):
                self._grant(call, register.take_together(number, several))
            case Withdraw(call, several):
                self._withdraw(call, several)
            case Free(names):
                register.free(number, names)
            case Find(call, name):
                self._line.send(Found(call, register.find(name), register.fate(name)))
            case WorkerReady() if not self.ready.done():
                self.ready.set_result(note)
            case WorkerUnfit(message, code, details) if not self.ready.done():
                error = from_wire(code, message, details) if code else ConfigurationError(message, **details)
                self.ready.set_exception(error)
                self.ready.exception()

    def _grant(self, call: int, taking: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(call, taking))
        self._takes[call] = task
        task.add_done_callback(lambda _: self._takes.pop(call, None))

    async def _answer(self, call: int, taking: Any) -> None:
        try:
            await taking
        except CapacityReached as full:
            details = full.details
            self._line.send(Full(call, details["active_sessions"], details["max_sessions"]))
        except HeldByPeer as found:
            self._line.send(HeldElsewhere(call, found.worker))
        else:
            self._page.taken = self._register.slots.taken
            self._line.send(Granted(call))

    def _withdraw(self, call: int, several: list[Names]) -> None:
        take = self._takes.get(call)
        if take is not None and take.cancel():
            return
        for names in several:
            self._register.free(self._number, names)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def describe(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
