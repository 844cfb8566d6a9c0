"""Answers that leave from the environment's own thread, past the event loop."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from envtorch import EnvClient
from envtorch.errors import EnvironmentFailed
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.protocol.wire import Reply
from envtorch.server import create_app
from envtorch.server.runners.thread_results import Mailbox, Pending
from envtorch.server.transport.express import DirectSocket, ExpressDelivery
from tests.server.environments import Count, Obedient, Order, Report
from tests.support import Running, eventually, running


class ObedientEnv(EnvClient[Order, Report, Count]): ...


class Transport:
    """A transport as far as a `DirectSocket` looks at it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unsent = 0
        self.closing = False

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.sock

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Loop:
    """Does at once what it is asked to do soon."""

    def call_soon_threadsafe(self, call: Any, *args: Any) -> None:
        call(*args)


class Ends:
    """Both ends of a connection, and what was left to the loop."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.peer = socket.create_connection(listener.getsockname())
            self.ours, _ = listener.accept()
        self.transport = Transport(self.ours)
        self.left_to_the_loop: list[tuple[bytes, bool]] = []
        self.direct = DirectSocket(
            cast("Any", self.transport),
            cast("Any", Loop()),
            lambda frame, binary: self.left_to_the_loop.append((frame, binary)),
        )

    def heard(self) -> bytes:
        self.peer.settimeout(5)
        return self.peer.recv(1 << 20)

    def close(self) -> None:
        for each in (self.direct, self.ours, self.peer):
            each.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


class TestASocketForOtherThreads:
    @pytest.mark.parametrize("size", [1, 125, 126, 30_000])
    def test_a_frame_is_one_whole_message(self, ends: Ends, size: int) -> None:
        ends.direct.send(b"x" * size, False)
        heard = ends.heard()
        head = bytes([0x81, size]) if size < 126 else bytes([0x81, 126]) + size.to_bytes(2, "big")
        assert heard == head + b"x" * size
        assert not ends.left_to_the_loop

    def test_a_binary_frame_says_so(self, ends: Ends) -> None:
        ends.direct.send(b"\x80", True)
        assert ends.heard() == b"\x82\x01\x80"

    def test_what_the_loop_has_not_sent_yet_goes_first(self, ends: Ends) -> None:
        ends.transport.unsent = 1
        ends.direct.send(b"{}", False)
        assert ends.left_to_the_loop == [(b"{}", False)]

    def test_a_large_frame_is_the_loops(self, ends: Ends) -> None:
        frame = b"x" * (1 << 20)
        ends.direct.send(frame, True)
        assert ends.left_to_the_loop == [(frame, True)]

    def test_a_connection_that_closes_is_left_to_the_loop(self, ends: Ends) -> None:
        ends.transport.closing = True
        ends.direct.send(b"{}", False)
        assert ends.left_to_the_loop == [(b"{}", False)]

    def test_a_connection_that_takes_nothing_is_left_to_the_loop(self, ends: Ends) -> None:
        ends.ours.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                ends.ours.send(b"x" * 65536)
        ends.direct.send(b"{}", False)
        assert ends.left_to_the_loop == [(b"{}", False)]

    def test_half_a_frame_cuts_the_line(self, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
        class Full(socket.socket):
            """One that has room for half of what it is given."""

            def send(self, data: Any, flags: int = 0, /) -> int:
                return super().send(data[: len(data) // 2], flags)

        with Full(fileno=ends.ours.dup().detach()) as full:
            monkeypatch.setattr(ends.direct, "_socket", full)
            ends.direct.send(b"x" * 100, False)
            ends.direct.send(b"y" * 100, False)
            heard = ends.heard()
            assert heard == b"\x81\x64" + b"x" * 49
            assert ends.heard() == b"", "nothing follows half a frame but the end"
        assert ends.left_to_the_loop == [(b"y" * 100, False)], "which finds the connection gone"

    def test_it_holds_no_connection_open(self, ends: Ends) -> None:
        ends.ours.close()
        ends.direct.close()
        assert ends.heard() == b""


class TestOneAnswer:
    def delivery(self, ends: Ends, format: Format = JSON) -> ExpressDelivery:
        return ExpressDelivery(ends.direct, format, id=7, channel=3)

    @pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
    def test_it_is_what_the_loop_would_have_sent(self, ends: Ends, format: Format) -> None:
        data = format.write({"reward": 1.0})
        self.delivery(ends, format).deliver(Reply("observation", data, format))
        payload = ends.heard()[2:]
        assert format.read(payload) == {"type": "observation", "id": 7, "ch": 3, "data": {"reward": 1.0}}

    def test_what_is_taken_back_is_not_delivered(self, ends: Ends) -> None:
        delivery = self.delivery(ends)
        assert delivery.revoke()
        assert not delivery.claim()
        assert not delivery.is_claimed

    def test_what_is_delivered_is_not_taken_back(self, ends: Ends) -> None:
        delivery = self.delivery(ends)
        assert delivery.claim()
        assert not delivery.revoke()
        assert delivery.is_claimed

    def test_either_is_decided_once_whoever_comes_first(self, ends: Ends) -> None:
        for _ in range(200):
            delivery = self.delivery(ends)
            start = threading.Barrier(2)
            won: list[str] = []

            def race(name: str, decide: Any, start: threading.Barrier = start, won: list[str] = won) -> None:
                start.wait()
                if decide():
                    won.append(name)

            threads = [
                threading.Thread(target=race, args=("claim", delivery.claim)),
                threading.Thread(target=race, args=("revoke", delivery.revoke)),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(won) == 1

    def test_a_step_that_was_taken_back_is_told_so_once(self, ends: Ends) -> None:
        told: list[tuple[Reply | None, object]] = []
        mailbox = Mailbox(lambda: None)  # type: ignore[arg-type]
        pending = Pending(lambda reply, error: told.append((reply, error)), self.delivery(ends))
        assert pending.cancel()
        pending.end(mailbox, Reply("observation", b"{}"), None)
        mailbox.look()
        assert [reply for reply, _ in told] == [None]
        ends.ours.close()
        ends.direct.close()
        assert ends.heard() == b"", "nothing was delivered"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Obedient, max_concurrent_envs=8)) as running_server:
        yield running_server


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that have sent answers past the loop."""
    seen: list[str] = []
    send = DirectSocket.send

    def noting(self: DirectSocket, frame: bytes, binary: bool) -> None:
        seen.append(threading.current_thread().name)
        send(self, frame, binary)

    monkeypatch.setattr(DirectSocket, "send", noting)
    return seen


class TestOnALiveServer:
    def test_a_lone_session_is_answered_by_its_own_thread(self, server: Running, senders: list[str]) -> None:
        with ObedientEnv(server.url) as env:
            env.reset()
            for _ in range(20):
                env.step(Order(do="count"))
            assert env.state().step_count == 20
        assert senders
        assert set(senders) == {"env-Obedient"}

    def test_an_environment_that_fails_is_the_loops_to_tell(
        self, server: Running, senders: list[str]
    ) -> None:
        with ObedientEnv(server.url) as env:
            env.reset()
            with pytest.raises(EnvironmentFailed, match="kaboom"):
                env.step(Order(do="fail"))
            env.step(Order(do="count"))
        assert len(senders) == 1

    def test_nothing_is_left_of_a_line_that_ended(self, server: Running, senders: list[str]) -> None:
        for _ in range(200):  # more than there are direct lines at once
            with ObedientEnv(server.url) as env:
                env.reset()
                env.step(Order(do="count"))
        eventually(lambda: not server.sessions.is_busy, "the server is at rest")
        with ObedientEnv(server.url) as env:
            env.reset()
            before = len(senders)
            env.step(Order(do="count"))
            assert len(senders) > before
