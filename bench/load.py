"""The load generator: so many sessions on OpenEnv's wire, each stepping as fast as it is answered.

    python -m bench.load '{"port": 8000, "server_pid": 123, "sessions": 64, "seconds": 3}'

It runs in a process of its own, on a core of its own, and prints one line of JSON. Every reply is looked at;
at the end every session is asked how many steps it took, and that must be what was answered.
"""

import asyncio
import json
import sys
import time
from array import array
from dataclasses import asdict, dataclass, field
from typing import Any

import uvloop
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench.proc import cpu_seconds, waited
from bench.stats import percentile

STEP = '{"type":"step","data":{"message":"hello"}}'
OPENING_AT_ONCE = 32


@dataclass(frozen=True)
class Load:
    """What to do."""

    port: int
    server_pid: int
    sessions: int
    seconds: float
    warm_up_s: float = 0.3
    frame: str = STEP
    counts_steps: bool = True
    """Whether the server can be asked how many steps were taken."""
    family: bool = False
    """Whether the server is more than one process."""


@dataclass(frozen=True)
class Outcome:
    """What came of it. Times are seconds, of the measured span only."""

    steps: int
    seconds: float
    server_cpu_s: float
    load_cpu_s: float
    p50_s: float
    p99_s: float
    opening_s: float
    load_waited_s: float
    """How long the load generator had to wait for its core: next to nothing on a quiet machine."""
    errors: list[str] = field(default_factory=list)

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds

    @property
    def cpu_us_per_step(self) -> float:
        return self.server_cpu_s / self.steps * 1e6


class Player(WSListener):
    """One session. After `play`, each reply brings the next step."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self.steps = 0
        self.asked_at = 0.0
        self.reply: asyncio.Future[bytes] | None = None
        self.playing = False
        self.over = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if not self.over:
            self.run.fail(self, "the server closed the connection")

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind != WSMsgType.TEXT and kind != WSMsgType.BINARY:
            return
        payload = frame.get_payload_as_bytes()
        if not self.playing:
            if self.reply is not None and not self.reply.done():
                self.reply.set_result(payload)
            return
        if b'"error"' in payload[:24]:
            self.run.fail(self, payload[:200].decode(errors="replace"))
            return
        now = time.perf_counter()
        self.steps += 1
        self.run.latencies.append(now - self.asked_at)
        if self.run.stopping:
            self.playing = False
            self.run.idle(self)
        else:
            self.asked_at = now
            transport.send(WSMsgType.TEXT, self.run.frame)

    def play(self) -> None:
        self.playing = True
        self.asked_at = time.perf_counter()
        self.transport.send(WSMsgType.TEXT, self.run.frame)

    async def ask(self, frame: bytes) -> Any:
        self.reply = asyncio.get_running_loop().create_future()
        self.transport.send(WSMsgType.TEXT, frame)
        async with asyncio.timeout(120):
            return json.loads(await self.reply)


class Run:
    """All the players of one load."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.frame = load.frame.encode()
        self.latencies: array[float] = array("d")
        self.errors: list[str] = []
        self.stopping = False
        self.playing: set[Player] = set()
        self.all_idle = asyncio.Event()

    def fail(self, player: Player, why: str) -> None:
        if len(self.errors) < 10:
            self.errors.append(why)
        self.idle(player)

    def idle(self, player: Player) -> None:
        self.playing.discard(player)
        if not self.playing:
            self.all_idle.set()

    async def open(self) -> list[Player]:
        turn = asyncio.Semaphore(OPENING_AT_ONCE)

        async def one() -> Player:
            async with turn:
                _, player = await ws_connect(
                    lambda: Player(self),
                    f"ws://127.0.0.1:{self.load.port}/ws",
                    websocket_handshake_timeout=60,
                )
                assert isinstance(player, Player)
                answer = await player.ask(b'{"type":"reset"}')
                if answer["type"] == "error":
                    raise RuntimeError(f"reset was answered {answer}")
                return player

        return list(await asyncio.gather(*(one() for _ in range(self.load.sessions))))

    async def go(self) -> Outcome:
        began = time.perf_counter()
        players = await self.open()
        opening_s = time.perf_counter() - began
        self.playing = set(players)
        for player in players:
            player.play()
        await asyncio.sleep(self.load.warm_up_s)
        self.latencies = array("d")
        start = self._clocks()
        await asyncio.sleep(self.load.seconds)
        end = self._clocks()
        latencies = self.latencies
        self.stopping = True
        async with asyncio.timeout(120):
            await self.all_idle.wait()
        if self.load.counts_steps and not self.errors:
            await self._recount(players)
        for player in players:
            player.over = True
            player.transport.send_close(WSCloseCode.OK)
            player.transport.disconnect()
        spans = [after - before for before, after in zip(start, end, strict=True)]
        steps = int(spans[3])
        if steps == 0:
            self.errors.append("not one step was answered")
        return Outcome(
            steps=steps,
            seconds=spans[0],
            server_cpu_s=spans[1],
            load_cpu_s=spans[2],
            p50_s=percentile(latencies, 0.5) if latencies else 0.0,
            p99_s=percentile(latencies, 0.99) if latencies else 0.0,
            opening_s=opening_s,
            load_waited_s=spans[4],
            errors=self.errors,
        )

    def _clocks(self) -> tuple[float, float, float, int, float]:
        cpu = cpu_seconds(self.load.server_pid, family=self.load.family)
        return time.perf_counter(), cpu, time.process_time(), len(self.latencies), waited()

    async def _recount(self, players: list[Player]) -> None:
        """The server must have taken exactly the steps that it answered."""
        for player in players:
            answer = await player.ask(b'{"type":"state"}')
            taken = answer["data"].get("step_count")
            if taken != player.steps:
                self.errors.append(f"{player.steps} steps were answered, and the server counts {taken}")
                return


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def run() -> Outcome:
            return await Run(load).go()

        print(json.dumps(asdict(runner.run(run()))))


if __name__ == "__main__":
    main()
