"""One socket that sends the same batch again and again, and counts the replies: the limit of `VectorEnv`."""

import asyncio
import json
import time

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench.clients.timing import asked, tell
from bench.stats import percentile

WARM_UP_S = 0.3


class Batcher(WSListener):
    """Sends the next batch as soon as the last one is answered."""

    def __init__(self, width: int) -> None:
        messages = [
            {"type": "step", "ch": channel, "id": 1, "data": {"message": "hello"}} for channel in range(width)
        ]
        self.frame = json.dumps(messages, separators=(",", ":")).encode()
        self.width = width
        self.times: list[float] = []
        self.first: bytes | None = None
        self.asked_at = 0.0

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        if self.first is None:
            self.first = payload
        now = time.perf_counter()
        self.times.append(now - self.asked_at)
        self.send(transport, now)

    def send(self, transport: WSTransport, now: float) -> None:
        self.asked_at = now
        transport.send(WSMsgType.TEXT, self.frame)


async def main() -> None:
    job = asked()
    transport, batcher = await ws_connect(lambda: Batcher(job["size"]), f"ws://127.0.0.1:{job['port']}/ws")
    assert isinstance(batcher, Batcher)
    batcher.send(transport, time.perf_counter())
    await asyncio.sleep(WARM_UP_S)
    if batcher.first is None or len(json.loads(batcher.first)) != job["size"]:
        raise RuntimeError(f"a batch was answered {batcher.first!r}")
    warm_up = len(batcher.times) * job["size"]
    batcher.times = []
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(job["seconds"])
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    times, steps = batcher.times, len(batcher.times) * job["size"]
    transport.disconnect()
    tell(
        {
            "server_calls": steps + warm_up,
            "steps_per_s": steps / seconds,
            "p50_ms": percentile(times, 0.5) * 1e3,
            "client_cpu_us": spent / steps * 1e6,
        }
    )


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
