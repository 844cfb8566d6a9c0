"""A socket whose frames another worker answers: when that worker is gone, nothing counts as running."""

import asyncio
from collections.abc import Callable

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from envtorch.server.app import HTTPEnvServer
from envtorch.server.transport.connection import Conversation
from envtorch.server.workers.frame_forwarding import SocketTunnel
from tests.server.workers.app import Tell, Teller, Told
from tests.support import PATIENCE_S

FRAME = b'{"type":"state"}'


class LastWords:
    """A socket that still has a frame to be read when it is closed."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()

    async def converse(self, conversation: Conversation) -> None:
        conversation.take(FRAME)
        await self._closed.wait()
        conversation.take(FRAME)

    def close(self, code: int = 1000) -> None:
        self._closed.set()

    def send(self, frame: bytes, *, binary: bool = False) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def has_room(self, go_on: Callable[[], None], *, more: int = 0) -> bool:
        return True


def test_a_frame_that_is_read_after_the_other_worker_ended_does_not_run_for_ever() -> None:
    async def hang_up(connection: ServerConnection) -> None:
        await connection.recv()

    async def main() -> None:
        sessions = HTTPEnvServer(Teller, Tell, Told, max_concurrent_envs=2).sessions
        async with serve(hang_up, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await SocketTunnel(await connect(f"ws://127.0.0.1:{port}"), LastWords(), sessions).serve()
        assert sessions.meter.running == 0
        await sessions.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
