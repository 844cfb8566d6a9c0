"""Requests that one worker passes on to another: each is answered, whatever becomes of the connection."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from envtorch.errors import SessionLost
from envtorch.protocol.extended import Message
from envtorch.protocol.formats import JSON
from envtorch.protocol.reconnect import TAKEN_OVER
from envtorch.server.workers.peer_channels import PeerLink

ATTACH = Message("attach", id=1, ch=0)


async def always_room() -> None:
    pass


class Worker:
    """A peer that reads a request and ends the connection without an answer."""

    def __init__(self, code: int | None) -> None:
        self._code = code
        self.has_read = asyncio.Event()

    async def __call__(self, connection: ServerConnection) -> None:
        await connection.recv()
        self.has_read.set()
        if self._code is None:
            await connection.wait_closed()
        else:
            await connection.close(self._code)


@pytest.mark.parametrize(
    ("code", "hangs_up"), [(1011, False), (TAKEN_OVER, False), (None, True)], ids=["dies", "taken", "closed"]
)
def test_a_request_under_way_is_answered_when_the_connection_ends(code: int | None, hangs_up: bool) -> None:
    async def play() -> None:
        worker = Worker(code)
        under_way: list[int] = []
        sessions: Any = SimpleNamespace(meter=SimpleNamespace(busy=under_way.append))
        sent: list[Message] = []
        async with serve(worker, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            connection = await connect(f"ws://127.0.0.1:{port}")
            ended = asyncio.Event()
            link = PeerLink(
                connection,
                JSON,
                sessions,
                sent.append,
                always_room,
                lambda: SessionLost("the worker is gone"),
                lambda link, taken_over: ended.set(),
            )
            asked = link.ask(ATTACH)
            await worker.has_read.wait()
            if hangs_up:
                link.close()
            answer = await asked
            await ended.wait()
            assert answer.type == "error"
            assert not sent  # nothing goes to a client that did not ask
            assert sum(under_way) == 0
            with pytest.raises(SessionLost, match="the worker is gone"):
                await link.ask(ATTACH)
            with pytest.raises(SessionLost, match="the worker is gone"):
                link.forward(ATTACH, lambda: None)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("code", "hangs_up"), [(1011, False), (TAKEN_OVER, False), (None, True)], ids=["dies", "taken", "closed"]
)
def test_a_request_that_is_passed_on_is_settled_when_the_connection_ends(
    code: int | None, hangs_up: bool
) -> None:
    async def play() -> None:
        worker = Worker(code)
        under_way: list[int] = []
        sessions: Any = SimpleNamespace(meter=SimpleNamespace(busy=under_way.append))
        sent: list[Message] = []
        settled: list[int] = []
        async with serve(worker, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            ended = asyncio.Event()
            link = PeerLink(
                await connect(f"ws://127.0.0.1:{port}"),
                JSON,
                sessions,
                sent.append,
                always_room,
                lambda: SessionLost("the worker is gone"),
                lambda link, taken_over: ended.set(),
            )
            for id in (1, 2):
                link.forward(Message("step", id=id, ch=0), partial(settled.append, id))
            await worker.has_read.wait()
            assert not settled
            if hangs_up:
                link.close()
            await ended.wait()
            await asyncio.sleep(0)
            assert (settled, sum(under_way)) == ([1, 2], 0)
            assert [message.type for message in sent] == (["error"] * 2 if code == 1011 else [])

    asyncio.run(play())
