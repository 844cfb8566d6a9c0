"""Hold so many sessions open and idle: `python -m bench.hold PORT SESSIONS`, until its input ends."""

import asyncio
import sys

import uvloop
from picows import WSMsgType, ws_connect

from bench.crowd import Caller

OPENING_AT_ONCE = 32


async def main(port: int, sessions: int) -> None:
    turn = asyncio.Semaphore(OPENING_AT_ONCE)

    async def one() -> object:
        async with turn:
            transport, caller = await ws_connect(
                Caller, f"ws://127.0.0.1:{port}/ws", websocket_handshake_timeout=None
            )
            assert isinstance(caller, Caller)
            await caller.ask(transport, b'{"type":"reset"}', 120)
            return transport

    held = await asyncio.gather(*(one() for _ in range(sessions)))
    print("held", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for transport in held:
        transport.send(WSMsgType.TEXT, b'{"type":"close"}')  # type: ignore[attr-defined]


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), int(sys.argv[2])))
