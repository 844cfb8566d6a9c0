"""A client that stops waiting for its session: the slot is free when the environment has been built."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from envtorch import ConcurrencyConfig, create_app
from envtorch.errors import ConnectFailed, SessionLost, TimedOut
from tests.client.test_clients import ObedientEnv
from tests.server.environments import Obedient
from tests.support import Running, eventually, running

COUNT = 2
may_build = threading.Event()


class Interrupted(Exception):
    """What a signal handler raises, as Ctrl-C's does."""


class SlowlyBuilt(Obedient):
    def __init__(self) -> None:
        may_build.wait()
        super().__init__()


@contextmanager
def serving_slowly_built(slots: int) -> Iterator[Running]:
    """A server whose environments are built while `may_build` is set."""
    config = ConcurrencyConfig(max_concurrent_envs=slots, reconnect_grace=3600)
    try:
        with running(create_app(SlowlyBuilt, concurrency_config=config)) as server:
            yield server
    finally:
        may_build.set()


@pytest.fixture
def server() -> Iterator[Running]:
    may_build.clear()
    with serving_slowly_built(COUNT) as running_server:
        yield running_server


@contextmanager
def interrupted_opening(server: Running, taken: int) -> Iterator[None]:
    """A block that is interrupted when so many slots are taken."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    def interrupt_when_opening() -> None:
        eventually(lambda: server.sessions.active == taken, "a session is being opened")
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    thread = threading.Thread(target=interrupt_when_opening)
    thread.start()
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, before)


def end_every_session(server: Running) -> None:
    """End them behind the back of their clients."""
    for session in server.sessions.all():
        httpx.post(server.url + "/close", headers={"EnvTorch-Session": session.token}, json={})
    eventually(lambda: server.sessions.active == 0, "every session has ended")


def every_slot_comes_free(server: Running, taken: int = COUNT) -> None:
    assert server.sessions.active == taken, "each of them is being opened"
    may_build.set()
    eventually(lambda: server.sessions.active == 0, "no slot waits for its client until the grace is over")


def test_at_the_end_of_connect_timeout_s(server: Running) -> None:
    for _ in range(COUNT):
        with pytest.raises(ConnectFailed, match="did not open a session"):
            ObedientEnv(server.url, connect_timeout_s=1.0).reset()
    every_slot_comes_free(server)


def test_of_a_vector(server: Running) -> None:
    with pytest.raises(ConnectFailed, match="did not open a session"):
        ObedientEnv.vector(server.url, COUNT, connect_timeout_s=1.0)
    every_slot_comes_free(server)


def test_when_it_is_interrupted(server: Running) -> None:
    for number in range(COUNT):
        with interrupted_opening(server, taken=number + 1):
            ObedientEnv(server.url).reset()
    every_slot_comes_free(server)


@pytest.mark.parametrize("is_vector", [False, True])
def test_when_a_reset_that_opens_another_session_is_interrupted_and_the_client_closed(
    server: Running, is_vector: bool
) -> None:
    may_build.set()
    env: Any = ObedientEnv.vector(server.url, COUNT) if is_vector else ObedientEnv(server.url)
    env.reset()
    if is_vector:
        env.end(range(COUNT))
    end_every_session(server)
    if not is_vector:
        with pytest.raises(SessionLost):
            env.state()
    may_build.clear()
    with interrupted_opening(server, taken=COUNT if is_vector else 1):
        env.reset()
    env.close()
    every_slot_comes_free(server, taken=COUNT if is_vector else 1)


def test_when_a_deadline_ends_the_call_that_recovers_and_the_client_is_closed(server: Running) -> None:
    may_build.set()
    env = ObedientEnv(server.url, recover="replay")
    env.reset()
    end_every_session(server)
    may_build.clear()
    while server.sessions.active == 0:  # each call goes on with the recovery
        with pytest.raises(TimedOut):
            env.state(timeout_s=1.0)
    env.close()
    every_slot_comes_free(server, taken=1)


def test_when_the_task_that_recovers_is_cancelled_and_the_client_closed(server: Running) -> None:
    may_build.set()

    async def recover() -> None:
        env = ObedientEnv.aio(server.url, recover="replay")
        await env.reset()
        await asyncio.to_thread(end_every_session, server)
        may_build.clear()
        recovering = asyncio.create_task(env.state())
        await asyncio.to_thread(eventually, lambda: server.sessions.active == 1, "a session is being opened")
        recovering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await recovering
        await env.close()

    asyncio.run(recover())
    every_slot_comes_free(server, taken=1)


@pytest.mark.parametrize("is_vector", [False, True])
def test_when_it_is_interrupted_before_it_knows_that_its_request_was_sent(
    server: Running, is_vector: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    send = socket.socket.sendall

    def interrupted_send(sock: socket.socket, data: bytes) -> None:
        send(sock, data)
        sent.append(data)
        if len(sent) == 2:  # the handshake was the first
            eventually(lambda: server.sessions.active > 0, "a session is being opened")
            raise Interrupted

    monkeypatch.setattr(socket.socket, "sendall", interrupted_send)
    opening: Callable[[], Any] = (
        partial(ObedientEnv.vector, server.url, COUNT) if is_vector else ObedientEnv(server.url).reset
    )
    with pytest.raises(Interrupted):
        opening()
    may_build.set()
    eventually(lambda: server.sessions.active == 0, "no slot waits for its client until the grace is over")


def test_when_its_server_cannot_be_told(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_send(sock: socket.socket, data: bytes) -> None:
        monkeypatch.setattr(socket, "create_connection", refuse)
        if b"HTTP/1.1" not in data:
            raise Interrupted
        send(sock, data)

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("nobody is there")

    send = socket.socket.sendall
    monkeypatch.setattr(socket.socket, "sendall", interrupted_send)
    with pytest.raises(Interrupted):
        ObedientEnv(server.url).reset()


@pytest.mark.parametrize("is_closed", [False, True])
def test_when_its_task_is_cancelled(server: Running, is_closed: bool) -> None:
    def wait_for(taken: int) -> None:
        eventually(lambda: server.sessions.active == taken, "a session is being opened")

    async def give_up(taken: int) -> None:
        env = ObedientEnv.aio(server.url)
        opening = asyncio.create_task(env.reset())
        await asyncio.to_thread(wait_for, taken)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        if is_closed:
            await env.close()

    for number in range(COUNT):
        asyncio.run(give_up(number + 1))
    every_slot_comes_free(server)
