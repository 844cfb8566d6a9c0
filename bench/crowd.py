"""A crowd of sessions at once: each connects, resets, takes one step that waits, and closes.

    python -m bench.crowd '{"port": 8000, "server_pid": 123, "sessions": 1024}'

This is OpenEnv's own scaling experiment: all start together, each of the three calls has a time limit, and a
session succeeded if all three were answered. At most `knocking` are between their first packet and the end of
their handshake: a kernel drops what its queue of new connections (`net.core.somaxconn`) cannot hold, and the
sender then waits for up to two minutes. With `together` nobody steps before everybody has been reset,
so that all sessions are open at once. Prints one line of JSON.
"""

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import uvloop
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench.proc import cpu_seconds, memory_mb, threads
from bench.stats import percentile


@dataclass(frozen=True)
class Crowd:
    """What to do. Times are seconds."""

    port: int
    server_pid: int
    sessions: int
    wait_s: float = 1.0
    timeout_s: float = 120.0
    together: bool = False
    knocking: int = 1024


@dataclass(frozen=True)
class CrowdOutcome:
    """What became of the sessions. Percentiles are of whole sessions that succeeded."""

    succeeded: int
    p50_s: float
    p99_s: float
    step_p99_s: float
    wall_s: float
    peak_sessions: int
    peak_threads: int
    server_cpu_s: float
    server_mb: float
    failures: dict[str, int] = field(default_factory=dict)


class Caller(WSListener):
    """One session: a question at a time."""

    reply: asyncio.Future[bytes] | None = None

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self.reply is not None and not self.reply.done() and frame.msg_type == WSMsgType.TEXT:
            self.reply.set_result(frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(ConnectionError("the server closed the connection"))

    async def ask(self, transport: WSTransport, frame: bytes, timeout_s: float) -> Any:
        self.reply = asyncio.get_running_loop().create_future()
        transport.send(WSMsgType.TEXT, frame)
        async with asyncio.timeout(timeout_s):
            answer = json.loads(await self.reply)
        if answer["type"] == "error":
            raise RuntimeError(answer["data"].get("code", "error"))
        return answer


class Experiment:
    """All the sessions, and what is counted of them."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.url = f"ws://127.0.0.1:{crowd.port}/ws"
        self.frame = json.dumps({"type": "step", "data": {"message": "x", "wait_s": crowd.wait_s}}).encode()
        self.totals: list[float] = []
        self.step_times: list[float] = []
        self.failures: Counter[str] = Counter()
        self.open = 0
        self.peak = 0
        self.peak_threads = 0
        self.peak_mb = 0.0
        self.door = asyncio.Semaphore(crowd.knocking)
        self.still_coming = crowd.sessions
        self.everybody_came = asyncio.Event()

    async def session(self) -> None:
        """One session, from connect to close; a failure is counted by where and what it was."""
        began = time.perf_counter()
        phase = "connect"
        arrived = False
        timeout_s = self.crowd.timeout_s
        try:
            async with asyncio.timeout(timeout_s), self.door:
                transport, caller = await ws_connect(Caller, self.url, websocket_handshake_timeout=None)
            assert isinstance(caller, Caller)
            self.open += 1
            self.peak = max(self.peak, self.open)
            try:
                phase = "reset"
                await caller.ask(transport, b'{"type":"reset","data":{}}', timeout_s)
                arrived = True
                await self.arrive()
                phase, asked = "step", time.perf_counter()
                await caller.ask(transport, self.frame, timeout_s)
                self.step_times.append(time.perf_counter() - asked)
                transport.send(WSMsgType.TEXT, b'{"type":"close"}')
            finally:
                self.open -= 1
                transport.send_close(WSCloseCode.OK)
                transport.disconnect()
        except Exception as error:  # whatever it was is the finding
            self.failures[f"{phase}: {type(error).__name__} {error}".strip()[:80]] += 1
            if not arrived:
                self.gone()
            return
        self.totals.append(time.perf_counter() - began)

    def gone(self) -> None:
        self.still_coming -= 1
        if self.still_coming == 0:
            self.everybody_came.set()

    async def arrive(self) -> None:
        self.gone()
        if self.crowd.together:
            await self.everybody_came.wait()

    async def watch(self) -> None:
        while True:
            self.peak_threads = max(self.peak_threads, threads(self.crowd.server_pid))
            self.peak_mb = max(self.peak_mb, memory_mb(self.crowd.server_pid))
            await asyncio.sleep(1)

    async def go(self) -> CrowdOutcome:
        watching = asyncio.create_task(self.watch())
        cpu, began = cpu_seconds(self.crowd.server_pid), time.perf_counter()
        await asyncio.gather(*(self.session() for _ in range(self.crowd.sessions)))
        wall_s = time.perf_counter() - began
        watching.cancel()
        return CrowdOutcome(
            succeeded=len(self.totals),
            p50_s=percentile(self.totals or [0.0], 0.5),
            p99_s=percentile(self.totals or [0.0], 0.99),
            step_p99_s=percentile(self.step_times or [0.0], 0.99),
            wall_s=wall_s,
            peak_sessions=self.peak,
            peak_threads=self.peak_threads,
            server_cpu_s=cpu_seconds(self.crowd.server_pid) - cpu,
            server_mb=self.peak_mb,
            failures=dict(self.failures.most_common(5)),
        )


def main() -> None:
    crowd = Crowd(**json.loads(sys.argv[1]))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def run() -> CrowdOutcome:
            return await Experiment(crowd).go()

        print(json.dumps(asdict(runner.run(run()))))


if __name__ == "__main__":
    main()
