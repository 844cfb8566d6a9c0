"""The master: it starts workers and keeps them, and hands each connection to the one with least to do.

It runs no code of the environment, so it does not fail with it. It keeps the register of sessions, because it
outlives every worker.
"""

import asyncio
import itertools
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from envtorch.errors import ConfigurationError
from envtorch.server.workers.peer_directory import listen_privately
from envtorch.server.workers.session_register import Register
from envtorch.server.workers.shared_counters import Page
from envtorch.server.workers.worker_messages import WorkerPlan, WorkerReady
from envtorch.server.workers.worker_process import WorkerChild, describe

__all__ = ["Master"]

logger = logging.getLogger(__name__)

AT_ONCE = 64
"""How many connections to accept before looking around."""
PAUSE_S = 0.005
"""How long to let connections wait in the kernel when no worker takes any."""
STOP_S = 25.0
"""How long closing may take, after the drain, before a worker is killed."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 10.0
"""Between the attempts to replace a worker that does not get to serve."""


class Master:
    """Runs from `run` until it is told to stop, or cannot start."""

    def __init__(
        self, plan: WorkerPlan, listener: socket.socket, workers: int, on_ready: Callable[[int], None]
    ) -> None:
        self._plan = plan
        self._listener = listener
        self._wanted = self._count = workers
        self._on_ready = on_ready
        self._page = Page.new(workers)
        self._register = Register()
        self._private: dict[int, socket.socket] = {}
        self._children: dict[int, WorkerChild] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._turn = itertools.count()
        self._stopping = False

    async def run(self) -> None:
        """Serve. Raises `ConfigurationError` when the workers cannot serve what they were told to."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        with ExitStack() as opened:
            for worker in range(self._wanted):
                self._private[worker] = listen_privately(Path(self._plan.directory), worker)
                opened.enter_context(self._private[worker])
            self._listener.setblocking(False)
            try:
                await self._start()
                self._accept_again()
                await asyncio.gather(*self._keepers)
            finally:
                loop.remove_reader(self._listener)
                await self._end()

    async def _start(self) -> None:
        """Start all at once; the first one tells how many are of use, and the others are let go.

        None takes a connection before all do: those that come together are to be spread.
        """
        children = [await self._keep(worker) for worker in range(self._wanted)]
        first = await self._ready(children[0])
        if first is None:
            return
        self._count = self._page.workers = useful(self._wanted, first)
        self._register.slots.capacity = first.capacity or 0
        for child in children[self._count :]:
            child.signal(signal.SIGKILL)
        await asyncio.gather(*map(self._ready, children[1 : self._count]))
        if not self._stopping:
            self._on_ready(self._count)

    async def _keep(self, worker: int) -> WorkerChild:
        """Start a worker, and see to it that there always is one of that number."""
        child = await self._spawn(worker)
        keeper = asyncio.get_running_loop().create_task(self._look_after(worker, child))
        self._keepers.append(keeper)
        return child

    async def _ready(self, child: WorkerChild) -> WorkerReady | None:
        """What it says when it serves; None when all are told to stop. Raises `ConfigurationError`."""
        await asyncio.wait({child.ready})
        return None if self._stopping else child.ready.result()

    async def _spawn(self, worker: int) -> WorkerChild:
        plan = msgspec.structs.replace(self._plan, worker=worker)
        child = await WorkerChild.start(plan, self._private[worker], self._page, self._register)
        self._children[worker] = child
        if self._stopping:  # the word was given while it was being started
            child.signal(signal.SIGTERM)
        return child

    async def _look_after(self, worker: int, child: WorkerChild) -> None:
        wait_s = FIRST_WAIT_S
        is_first = True
        while True:
            status = await child.ended()
            served = child.ready.exception() is None
            if self._stopping or worker >= self._count or (is_first and not served):
                self._children.pop(worker, None)
                return
            is_first = False
            logger.error("worker %d ended %s; another is started", worker, describe(status))
            wait_s = FIRST_WAIT_S if served else min(wait_s * 2, LONGEST_WAIT_S)
            await asyncio.sleep(0 if served else wait_s)
            another = await self._replace(worker)
            if another is None:
                return
            child = another

    async def _replace(self, worker: int) -> WorkerChild | None:
        """Another worker of that number, as soon as the system has room for one; None once all shall stop."""
        del self._children[worker]
        wait_s = FIRST_WAIT_S
        while not self._stopping:
            try:
                return await self._spawn(worker)
            except OSError as error:
                logger.error("worker %d cannot be started: %s; tried again in %g s", worker, error, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
        return None

    # Connections.

    def _accept_again(self) -> None:
        if not self._stopping or self._any_taker() is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            child = self._any_taker()
            if child is None:
                self._pause()
                return
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the peer has gone already, or there are no descriptors left
                logger.warning("a connection could not be accepted: %s", error)
                self._pause()
                return
            with connection:
                if not child.hand(connection):
                    self._hand_to_another(child, connection)

    def _hand_to_another(self, refused: WorkerChild, connection: socket.socket) -> None:
        """Whoever takes it. When nobody does, the client is cut off, and comes back."""
        others = [child for child in self._children.values() if child is not refused]
        any(child.takes_connections and child.hand(connection) for child in others)

    def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        loop.call_later(PAUSE_S, self._accept_again)

    def _any_taker(self) -> WorkerChild | None:
        """The worker with least to do; of equals, each in turn."""
        takers = [child for child in self._children.values() if child.takes_connections]
        if not takers:
            return None
        offset = next(self._turn) % len(takers)
        return min(takers[offset:] + takers[:offset], key=lambda child: child.load)

    # The end.

    def _stop(self) -> None:
        """The first word drains, the second hurries; a worker understands SIGTERM in the same way."""
        if not self._stopping:
            self._stopping = self._page.is_stopping = True
            asyncio.get_running_loop().call_later(
                self._plan.finish_s + self._plan.drain_s + STOP_S, self._kill
            )
        for child in self._children.values():
            child.signal(signal.SIGTERM)

    def _kill(self) -> None:
        for child in self._children.values():
            child.signal(signal.SIGKILL)

    async def _end(self) -> None:
        """Leave no worker behind, whatever ended the master's work."""
        if any(not keeper.done() for keeper in self._keepers):
            self._stopping = True
            self._kill()
            await asyncio.gather(*self._keepers, return_exceptions=True)


def useful(wanted: int, first: WorkerReady) -> int:
    """How many workers can be of use, where `wanted` were asked for."""
    if first.is_shared:
        logger.warning("one worker serves: every session uses the one environment that the application made")
        return 1
    if first.capacity is not None and first.capacity < wanted:
        logger.warning(
            "%d of %d workers serve: the application has room for no more sessions (sessions=)",
            first.capacity,
            wanted,
        )
        return first.capacity
    return wanted


def require_support() -> None:
    """Raises `ConfigurationError` where connections cannot be handed from process to process."""
    if not hasattr(socket, "send_fds"):
        raise ConfigurationError("workers need a system that hands descriptors over: Linux or macOS")
