"""A blocking call that is interrupted, anywhere: the next one gets its own answer, or is told what is lost.

`KeyboardInterrupt` can be raised between any two instructions. Here it is raised at the first traced event of
a call in this package, then at the second, and so on until the call has ended before its turn.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import envtorch
from envtorch import ConcurrencyConfig, create_app
from envtorch.client.blocking.socket import BlockingShell
from envtorch.client.guard import UseGuard
from envtorch.errors import ClientBusy, EnvTorchError, SessionLost
from envtorch.protocol.channels import ClientChannels
from envtorch.protocol.formats import JSON
from envtorch.protocol.reconnect import Send
from tests.client.test_clients import ObedientEnv
from tests.faults.counting import Add, Counting, CountingEnv
from tests.server.environments import AsyncObedient, Order
from tests.support import Running, eventually, running

PACKAGE = str(Path(envtorch.__file__).parent)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    config = ConcurrencyConfig(max_concurrent_envs=16, reconnect_grace=3600)
    with running(create_app(AsyncObedient, concurrency_config=config)) as running_server:
        yield running_server


def is_interrupted(call: Callable[[], object], at: int) -> bool:
    """Make the call, interrupted at its traced event of that number; False when it has fewer."""
    left = at

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        left -= 1
        if left == -1:
            sys.settrace(before)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):  # none comes of one in a callback, such as a finalizer's
            call()
    finally:
        sys.settrace(before)
    return left < 0


@pytest.mark.parametrize("wire", ["json", "msgpack", "openenv"])
def test_the_step_after_an_interrupted_one_gets_its_own_answer(server: Running, wire: Any) -> None:
    with ObedientEnv(server.url, wire=wire) as env:
        env.reset()
        at = 0
        while is_interrupted(lambda: env.step(Order(do="interrupted")), at):
            try:
                assert env.step(Order(do=f"next {at}")).observation.said == f"next {at}"
            except SessionLost:
                env.reset()
            assert env.step(Order(do=f"last {at}")).observation.said == f"last {at}"
            at += 1
        assert at > 100, "it was traced"


def test_a_reset_follows_every_interrupted_step(server: Running) -> None:
    with ObedientEnv(server.url, wire="openenv") as env:
        env.reset()
        at = 0
        while is_interrupted(lambda: env.step(Order(do="interrupted")), at):
            env.reset()
            assert env.step(Order(do=f"last {at}")).observation.said == f"last {at}"
            at += 1
        assert at > 100


def test_a_vector_goes_on_after_an_interrupted_step(server: Running) -> None:
    with ObedientEnv.vector(server.url, 2) as envs:
        envs.reset()
        at = 0
        while is_interrupted(lambda: envs.step([Order(do="interrupted")] * 2), at):
            result = envs.step([Order(do=f"{place} {at}") for place in range(2)])
            if result.errors:
                assert not envs.reset().errors
            else:
                assert [one.said for one in result.observations] == [f"0 {at}", f"1 {at}"]
            at += 1
        assert at > 100


@pytest.mark.parametrize("recover", [None, "replay"])
def test_a_fork_that_is_interrupted_while_its_copies_attach_leaves_the_vector_as_it_was(
    server: Running, monkeypatch: pytest.MonkeyPatch, recover: Any
) -> None:
    eventually(lambda: server.sessions.active == 0, "the server is empty")
    with ObedientEnv.vector(server.url, 2, wire="json", recover=recover) as envs:
        envs.reset()
        act = BlockingShell.act
        done: list[Any] = []

        def interrupted(shell: BlockingShell, wanted: Any) -> Any:
            is_attaching = bool(done) and isinstance(done[-1], Send) and b'"attach"' in done[-1].frame
            done.append(wanted)
            if is_attaching:
                raise KeyboardInterrupt
            return act(shell, wanted)

        monkeypatch.setattr(BlockingShell, "act", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.fork(0, 3)
        monkeypatch.undo()
        assert len(envs) == 2
        eventually(lambda: server.sessions.active == 2, "the copies have ended, long before their grace")
        assert envs.step([Order(do="next")] * 2).errors == {}
        assert envs.fork(1, 2) == [2, 3]
        assert [one.said for one in envs.step([Order(do="all")] * 4).observations] == ["all"] * 4


@pytest.mark.parametrize("wire", ["json", "openenv"])
def test_a_close_that_was_interrupted_can_be_repeated(server: Running, wire: Any) -> None:
    at, goes_on = 0, True
    while goes_on:
        env = ObedientEnv(server.url, wire=wire)
        env.reset()
        goes_on = is_interrupted(env.close, at)
        env.close()
        at += 1
    assert at > 10
    eventually(lambda: server.sessions.active == 0, "every slot is given back, long before the grace is over")


def test_what_has_arrived_and_was_not_taken_is_given_up_too() -> None:
    channels = ClientChannels(JSON)
    channels.greeting()
    channels.take(b'{"type":"session","id":1,"data":{}}')
    channels.each("step", {0: b"{}"}, deadline=1.0, limit_s=1.0, timeout_s=None)
    channels.take(b'{"type":"observation","id":2,"data":{}}')
    channels.give_up()
    assert channels.arrived() == []


class TestWhoMayCall:
    def test_another_thread_when_the_interrupted_one_has_ended(self, server: Running) -> None:
        with ObedientEnv(server.url) as env:
            env.reset()
            interrupted: list[bool] = []
            while all(interrupted):
                thread = threading.Thread(
                    target=lambda at: interrupted.append(is_interrupted(env.state, at)),
                    args=[len(interrupted)],
                )
                thread.start()
                thread.join()
                assert env.step(Order(do="here")).observation.said == "here"

    def test_a_signal_handler_which_ends_the_call_that_waits(self) -> None:
        """It is neither refused, nor does the call that it interrupted wait for ever."""
        said: list[int] = []

        def ask(*_: object) -> None:
            said.append(env.state().step_count)

        before = signal.signal(signal.SIGALRM, ask)
        try:
            with running(create_app(Counting)) as server, CountingEnv(server.url) as env:
                env.reset()
                signal.setitimer(signal.ITIMER_REAL, 0.5)
                with pytest.raises(ClientBusy, match="a signal handler made another call"):
                    env.step(Add(n=1, wait_s=3600))
                assert said == [0]
                assert env.step(Add(n=2)).observation.total == 2
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @pytest.mark.parametrize("is_vector", [False, True])
    def test_a_signal_handler_which_closes(self, is_vector: bool) -> None:
        def close(*_: object) -> None:
            env.close()

        before = signal.signal(signal.SIGALRM, close)
        try:
            with running(create_app(Counting)) as server:
                env: Any = CountingEnv.vector(server.url, 1) if is_vector else CountingEnv(server.url)
                env.reset()
                slow = Add(n=1, wait_s=3600)
                signal.setitimer(signal.ITIMER_REAL, 0.5)
                with pytest.raises(EnvTorchError):
                    env.step([slow] if is_vector else slow)
                eventually(lambda: server.sessions.active == 0, "the slot is free")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @pytest.mark.parametrize("closes", [False, True])
    @pytest.mark.parametrize("is_vector", [False, True])
    def test_a_signal_handler_after_a_request_was_sent(
        self, server: Running, monkeypatch: pytest.MonkeyPatch, is_vector: bool, closes: bool
    ) -> None:
        """The call that it interrupts has nothing to wait for any more, and says so."""
        env: Any = ObedientEnv.vector(server.url, 2) if is_vector else ObedientEnv(server.url)
        env.reset()
        act = BlockingShell.act

        def handle_signal() -> None:
            monkeypatch.undo()
            if closes:
                env.close()
            else:
                env.state()

        def sent(shell: BlockingShell, wanted: Any) -> Any:
            done = act(shell, wanted)
            if isinstance(wanted, Send):
                handle_signal()
            return done

        monkeypatch.setattr(BlockingShell, "act", sent)
        order = Order(do="interrupted")
        with pytest.raises(EnvTorchError):
            env.step([order] * 2 if is_vector else order)
        env.reset()
        env.close()

    def test_one_of_several_threads_when_the_one_before_has_ended(self) -> None:
        guard, entered = UseGuard("client"), []
        left_inside = threading.Thread(target=guard.__enter__)
        left_inside.start()
        left_inside.join()
        together, over = threading.Barrier(4), threading.Event()

        def enter() -> None:
            together.wait()
            try:
                guard.__enter__()
                entered.append("entered")
            except ClientBusy:
                entered.append("refused")
            over.wait()

        threads = [threading.Thread(target=enter) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(entered) == 4, "each was answered")
        over.set()
        for thread in threads:
            thread.join()
        assert sorted(entered) == ["entered", "refused", "refused", "refused"]
