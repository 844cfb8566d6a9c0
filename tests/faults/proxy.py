"""A TCP proxy that breaks connections: at a chosen byte, in a chosen way, or at random."""

import asyncio
import enum
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


class Fault(enum.Enum):
    CUT = "cut"
    """Both sides are closed."""
    RESET = "reset"
    """Both sides are reset."""
    HALF_CLOSE = "half-close"
    """One direction ends; the other goes on."""
    STALL = "stall"
    """One direction falls silent; everything stays open."""


class Direction(enum.Enum):
    TO_SERVER = "to server"
    TO_CLIENT = "to client"


@dataclass(frozen=True, slots=True)
class Break:
    """What goes wrong, in which direction, after how many bytes."""

    fault: Fault
    direction: Direction
    at: int


class Proxy:
    """Forwards to a port on this machine. The planned break happens once, when so many bytes have passed
    in its direction, over however many connections."""

    def __init__(self, target_port: int, planned: Break | None = None) -> None:
        self.port = 0
        self.forwarded = dict.fromkeys(Direction, 0)
        self.broken: Counter[Fault] = Counter()
        self._target_port = target_port
        self._planned = planned
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._flows: dict[asyncio.StreamWriter, asyncio.Event] = {}

    @property
    def faults(self) -> int:
        return self.broken.total()

    def target(self, port: int) -> None:
        """Forward connections that are made from now on to another port."""
        self._target_port = port

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        for ends in pair:
            sock = ends.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writers |= set(pair)
        flows = self._flows[writer] = asyncio.Event()
        flows.set()
        for direction, source, sink in (
            (Direction.TO_SERVER, reader, far_writer),
            (Direction.TO_CLIENT, far_reader, writer),
        ):
            pump = asyncio.ensure_future(self._pump(direction, source, sink, pair, flows))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
            pump.add_done_callback(lambda _: self._flows.pop(writer, None))

    async def _pump(
        self,
        direction: Direction,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        flows: asyncio.Event,
    ) -> None:
        with suppress(OSError, RuntimeError):  # RuntimeError: its direction has been closed meanwhile
            while data := await source.read(65536):
                await flows.wait()
                planned = self._due(direction, len(data))
                if planned is not None:
                    sink.write(data[: planned.at - self.forwarded[direction]])
                    self.forwarded[direction] = planned.at
                    await sink.drain()
                    await self._break(planned.fault, sink, pair)
                    return
                self.forwarded[direction] += len(data)
                sink.write(data)
                await sink.drain()
            for writer in pair:
                writer.close()

    def _due(self, direction: Direction, size: int) -> Break | None:
        """The planned break, if it falls within the next `size` bytes; it is then planned no longer."""
        planned = self._planned
        if planned is None or planned.direction is not direction:
            return None
        if self.forwarded[direction] + size <= planned.at:
            return None
        self._planned = None
        return planned

    async def _break(
        self, fault: Fault, sink: asyncio.StreamWriter, pair: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        self.broken[fault] += 1
        match fault:
            case Fault.CUT:
                for writer in pair:
                    writer.close()
            case Fault.RESET:
                for writer in pair:
                    reset(writer)
            case Fault.HALF_CLOSE:
                sink.write_eof()
            case Fault.STALL:
                await asyncio.Event().wait()  # until the proxy is closed

    def cut_one(self, dice: random.Random) -> None:
        """Break some connection, in some way that ends it."""
        alive = [writer for writer in self._writers if not writer.is_closing()]
        if alive:
            victim = dice.choice(alive)
            self._end(victim, Fault.RESET if dice.random() < 0.5 else Fault.CUT)
        self._writers = set(alive)

    def break_one(self, fault: Fault, dice: random.Random) -> None:
        """Break some connection in a given way. A stall passes after some seconds, or never."""
        if not self._flows:
            return
        victim = dice.choice(list(self._flows))
        if fault is Fault.STALL:
            self.broken[fault] += 1
            flows = self._flows.pop(victim)
            flows.clear()
            if dice.random() < 0.7:
                asyncio.get_running_loop().call_later(dice.uniform(0.1, 5), flows.set)
        elif not victim.is_closing():
            self._end(victim, fault)

    def _end(self, victim: asyncio.StreamWriter, fault: Fault) -> None:
        self.broken[fault] += 1
        match fault:
            case Fault.RESET:
                reset(victim)
            case Fault.HALF_CLOSE:
                victim.write_eof()
            case _:
                victim.close()

    def fall_silent(self) -> None:
        """Forward nothing any more, and close nothing either."""
        for pump in list(self._pumps):
            pump.cancel()

    def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        for writer in self._writers:
            writer.transport.abort()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST, as a machine does that knows nothing of it."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def proxy_to(port: int, planned: Break | None = None) -> AsyncIterator[Proxy]:
    """A proxy for the length of the block."""
    proxy = Proxy(port, planned)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0, backlog=1024)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.close()
        await asyncio.sleep(0)
