"""What becomes of a client's session: when it is lost, closed, dropped, inherited, or used by two threads."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from envtorch import ConcurrencyConfig, EnvClient, EnvPool, VectorEnv, create_app
from envtorch.compat.generic_client import GenericEnvClient
from envtorch.errors import (
    ClientBusy,
    ClientClosed,
    EnvironmentFailed,
    EnvTorchError,
    MessageTooLarge,
    SessionLost,
    TimedOut,
    WrongProcess,
)
from envtorch.providers import ProcessProvider
from tests.client.test_clients import ObedientEnv, ObedientHttp
from tests.faults.counting import Add, Counting, CountingEnv, counting_server
from tests.server.environments import AsyncObedient, Count, Obedient, Order, Report
from tests.support import PATIENCE_S, Running, cut, eventually, running


@pytest.fixture
def server() -> Iterator[Running]:
    with running(create_app(Obedient, max_concurrent_envs=4)) as running_server:
        yield running_server


def in_a_child(work: Callable[[], object]) -> str:
    """What `work` returns in a forked process, which then exits in the ordinary way, finalizers and all."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # a child that hangs is a failure, not a leftover
        try:
            said = str(work())
        except BaseException as error:
            said = type(error).__name__
        os.write(writable, said.encode())
        gc.collect()
        import weakref

        weakref.finalize._exitfunc()  # type: ignore[attr-defined]  # as at the exit of an interpreter
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    return said


class TestOtherProcesses:
    """A client that crosses `os.fork` is refused there, and nothing there touches the parent's session."""

    @pytest.mark.parametrize("wire", ["json", "msgpack", "openenv"])
    def test_a_blocking_client(self, server: Running, wire: Any) -> None:
        with ObedientEnv(server.url, wire=wire) as env:
            env.reset()
            assert in_a_child(lambda: env.step(Order(do="child")).observation.said) == "WrongProcess"
            assert env.step(Order(do="parent")).observation.said == "parent"
            assert in_a_child(env.close) == "None", "which closes its own descriptor only"
            assert env.step(Order(do="again")).observation.said == "again"
            assert env.state().step_count == 2

    def test_says_what_to_do(self, server: Running) -> None:
        with ObedientEnv(server.url) as env:
            env.reset()

            def said() -> str:
                try:
                    return str(env.state())
                except WrongProcess as error:
                    return str(error)

            assert f"belongs to process {os.getpid()}" in (told := in_a_child(said))
            assert "make a new one in the child process" in told

    def test_a_local_client(self) -> None:
        with ObedientEnv.local(Obedient) as env:
            env.reset()
            assert in_a_child(env.state) == "WrongProcess"
            assert env.step(Order(do="parent")).observation.said == "parent"

    def test_a_vector(self, server: Running) -> None:
        with ObedientEnv.vector(server.url, 2) as envs:
            envs.reset()
            assert in_a_child(lambda: str(envs.step([Order(do="child")] * 2))) == "WrongProcess"
            assert in_a_child(envs.close) == "None"
            assert [one.said for one in envs.step([Order(do="parent")] * 2).observations] == ["parent"] * 2

    def test_an_async_client_and_an_async_vector(self, server: Running) -> None:
        async def play() -> None:
            async with ObedientEnv.aio(server.url) as env, ObedientEnv.aio.vector(server.url, 2) as envs:
                await env.reset()
                await envs.reset()
                for call in (lambda: env.state(), lambda: envs.state()):  # made in the child

                    def run(call: Callable[[], Any] = call) -> str:
                        try:
                            call().send(None)
                        except StopIteration:
                            return "answered"
                        return "waited"

                    assert in_a_child(run) == "WrongProcess"
                assert (await env.step(Order(do="parent"))).observation.said == "parent"
                assert (await envs.step([Order(do="parent")] * 2)).errors == {}

        asyncio.run(play())

    def test_a_pool(self, echo_server: Running) -> None:
        from envtorch.envs.echo_env import EchoEnv
        from tests.pool.test_pool import Borrowed

        with EnvPool(EchoEnv, lambda: Borrowed(echo_server.url, []), replicas=1) as pool:
            with pool.session() as env:
                env.reset()

            def ask() -> str:
                with pool.session(timeout_s=5) as env:
                    return str(env.reset())

            assert in_a_child(ask) == "WrongProcess"
            assert in_a_child(pool.close) == "None"
            with pool.session() as env:
                env.reset()

    def test_an_http_client(self, server: Running) -> None:
        with ObedientHttp(server.url) as env:
            env.reset()
            assert in_a_child(env.state) == "WrongProcess"
            assert in_a_child(env.close) == "None"
            assert env.step(Order(do="parent")).observation.said == "parent"

    def test_a_client_written_for_openenv(self, server: Running) -> None:
        with GenericEnvClient(base_url=server.url).sync() as env:
            env.reset()
            assert in_a_child(env.state) == "WrongProcess"
            assert env.step({"do": "parent"}).observation["said"] == "parent"

    def test_a_server_that_was_started_for_a_client(self) -> None:
        provider = ProcessProvider()
        url = provider.start_container("envtorch.envs.echo_env.app:app")
        provider.wait_for_ready(url, timeout_s=60)

        class Env(EnvClient[dict[str, Any], dict[str, Any], dict[str, Any]]): ...

        with Env(url, provider=provider) as env:
            env.reset()
            in_a_child(env.close)
            in_a_child(lambda: "exits")
            assert env.step({"message": "alive"}).observation["echoed_message"] == "alive"


class TestThreads:
    def test_a_second_thread_is_refused_at_once(self, server: Running) -> None:
        Obedient.gate.clear()
        Obedient.entered.clear()
        with ObedientEnv(server.url) as env, ObedientEnv.vector(server.url, 1) as envs:
            env.reset()
            envs.reset()
            for call in (lambda: env.step(Order(do="wait")), lambda: envs.step([Order(do="wait")])):
                Obedient.gate.clear()
                Obedient.entered.clear()
                thread = threading.Thread(target=call)
                thread.start()
                assert Obedient.entered.wait(30)
                with pytest.raises(ClientBusy, match="use one per thread"):
                    env.state() if call.__code__.co_freevars == ("env",) else envs.state()
                Obedient.gate.set()
                thread.join(30)
                assert not thread.is_alive()
            assert env.step(Order(do="after")).observation.said == "after"
            assert envs.state()[0].step_count == 1


class TestLost:
    @pytest.mark.parametrize("wire", ["json", "openenv"])
    def test_reset_opens_a_new_session(self, wire: Any) -> None:
        with counting_server() as one, CountingEnv(one.url, wire=wire, reconnect_s=5) as env:
            env.reset(seed=1)
            one.process.kill()
            one.process.wait()
            for _ in range(2):
                with pytest.raises(SessionLost):
                    env.step(Add(n=1))
            with pytest.raises(EnvTorchError):
                env.reset(seed=1)  # there is no server

    def test_reset_opens_a_new_session_when_the_grace_period_is_over(self) -> None:
        config = ConcurrencyConfig(max_concurrent_envs=1, reconnect_grace=0.1)
        app = create_app(Obedient, concurrency_config=config)
        with running(app) as server, ObedientEnv(server.url) as env:
            env.reset(episode_id="first")
            cut(env)
            eventually(lambda: server.sessions.active == 0, "it is gone")
            with pytest.raises(SessionLost):
                env.step(Order(do="x"))
            with pytest.raises(SessionLost):
                env.state()
            assert env.reset(seed=5).observation.said == "seed 5"
            assert env.step(Order(do="on")).observation.said == "on"
            assert server.sessions.active == 1

    def test_reset_opens_a_new_session_when_a_hung_step_took_the_old_one(self, server: Running) -> None:
        Obedient.gate.clear()
        with ObedientEnv(server.url) as env:
            env.reset()
            with pytest.raises(TimedOut) as caught:
                env.step(Order(do="wait"), timeout_s=0.2)
            assert caught.value.details["usable"] is False
            with pytest.raises(SessionLost):
                env.step(Order(do="x"))
            assert env.reset(seed=5).observation.said == "seed 5"
            Obedient.gate.set()
            assert env.step(Order(do="on")).observation.said == "on"
        eventually(lambda: server.sessions.active == 0, "every slot is free")

    def test_the_async_client_does_the_same(self, server: Running) -> None:
        async def play() -> None:
            async with ObedientEnv.aio(server.url) as env:
                await env.reset()
                with pytest.raises(TimedOut):
                    await env.step(Order(do="wait"), timeout_s=0.2)
                with pytest.raises(SessionLost):
                    await env.step(Order(do="x"))
                Obedient.gate.set()
                assert (await env.reset(seed=5)).observation.said == "seed 5"
                assert (await env.step(Order(do="on"))).observation.said == "on"

        Obedient.gate.clear()
        asyncio.run(play())

    def test_a_server_that_shut_down_is_not_waited_for_with_every_call(self) -> None:
        with running(create_app(Obedient)) as server:
            env = ObedientEnv(server.url, reconnect_s=3600, message_timeout_s=3600)
            env.reset()
        # It took an hour for each call, and the test's own timeout would end it.
        for _ in range(3):
            with pytest.raises(EnvTorchError):
                env.step(Order(do="x"))
        env.close()


class TestClosed:
    @pytest.mark.parametrize("wire", ["json", "msgpack", "openenv"])
    def test_nothing_but_a_reset_opens_a_session(self, server: Running, wire: Any) -> None:
        env = ObedientEnv(server.url, wire=wire)
        env.reset()
        env.close()
        eventually(lambda: server.sessions.active == 0, "the slot is free")
        for call in (lambda: env.step(Order(do="x")), env.state, env.fork):
            with pytest.raises(ClientClosed, match=r"reset\(\) opens a new session"):
                call()
        assert server.sessions.active == 0
        assert env.reset(seed=3).observation.said == "seed 3"
        assert env.step(Order(do="on")).observation.said == "on"
        env.close()

    def test_nor_with_an_http_client(self, server: Running) -> None:
        env = ObedientHttp(server.url)
        env.reset()
        env.close()
        assert server.sessions.active == 0
        for call in (lambda: env.step(Order(do="x")), env.state):
            with pytest.raises(ClientClosed):
                call()
        assert env.reset(seed=3).observation.said == "seed 3"
        env.close()

    def test_nor_with_an_async_client(self, server: Running) -> None:
        async def play() -> None:
            env = ObedientEnv.aio(server.url)
            await env.reset()
            await env.close()
            with pytest.raises(ClientClosed):
                await env.step(Order(do="x"))
            with pytest.raises(ClientClosed):
                await env.state()
            assert (await env.reset(seed=3)).observation.said == "seed 3"
            await env.close()

        asyncio.run(play())

    def test_nor_with_a_vector(self, server: Running) -> None:
        envs = ObedientEnv.vector(server.url, 2)
        envs.reset()
        envs.close()
        with pytest.raises(ClientClosed):
            envs.step([Order(do="x")] * 2)
        assert [one.said for one in envs.reset(seed=3).observations] == ["seed 3", "seed 4"]
        envs.close()
        eventually(lambda: server.sessions.active == 0, "the slots are free")

    def test_nor_with_a_local_client(self) -> None:
        env = ObedientEnv.local()
        env.reset()
        env.close()
        with pytest.raises(ClientClosed):
            env.step(Order(do="x"))
        assert env.reset(seed=3).observation.said == "seed 3"
        env.close()
        instance = ObedientEnv.local(Obedient())
        instance.close()
        with pytest.raises(ClientClosed, match="pass a class"):
            instance.reset()


class TestDropped:
    """A client that nobody closed gives its slot back at once, and not when its grace period is over."""

    @pytest.mark.parametrize("wire", ["json", "msgpack", "openenv"])
    def test_a_blocking_client(self, server: Running, wire: Any) -> None:
        env = ObedientEnv(server.url, wire=wire)
        env.reset()
        assert server.sessions.active == 1
        del env
        gc.collect()
        eventually(lambda: server.sessions.active == 0, "the slot is free")

    def test_an_http_client(self, server: Running) -> None:
        env = ObedientHttp(server.url)
        env.reset()
        assert server.sessions.active == 1
        del env
        gc.collect()
        eventually(lambda: server.sessions.active == 0, "the slot is free")

    def test_a_vector(self, server: Running) -> None:
        envs: VectorEnv[Order, Report, Count] = ObedientEnv.vector(server.url, 3)
        envs.reset()
        assert server.sessions.active == 3
        del envs
        gc.collect()
        eventually(lambda: server.sessions.active == 0, "the slots are free")

    def test_an_async_client(self, server: Running) -> None:
        async def play() -> None:
            env = ObedientEnv.aio(server.url)
            await env.reset()
            assert server.sessions.active == 1
            del env
            gc.collect()
            for _ in range(1000):
                if server.sessions.active == 0:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("the slot was not given back")

        asyncio.run(play())

    @pytest.mark.parametrize("how", ["blocking", "vector", "async", "interrupted", "killed by its error"])
    def test_a_script_that_ends_without_closing(self, how: str) -> None:
        plays = {
            "blocking": "env = CountingEnv(url); env.reset()",
            "vector": "env = CountingEnv.vector(url, 2); env.reset()",
            "async": """
                async def play():
                    global env
                    env = CountingEnv.aio(url)
                    await env.reset()
                asyncio.run(play())""",
            "interrupted": "env = CountingEnv(url); env.reset(); raise KeyboardInterrupt",
            "killed by its error": "env = CountingEnv(url); env.reset(); raise RuntimeError",
        }
        with counting_server(grace_s=3600) as server:
            script = "import asyncio\nfrom tests.faults.counting import CountingEnv\n"
            script += f"url = {server.url!r}\n" + textwrap.dedent(plays[how])
            subprocess.run(
                [sys.executable, "-c", script], timeout=PATIENCE_S, check=False, stderr=subprocess.DEVNULL
            )
            eventually(lambda: server.sessions() == 0, "no slot is taken")


class TestGivingUp:
    """A client that stops waiting tells the server, which frees what can be freed."""

    def test_a_step_that_timed_out_is_cancelled(self) -> None:
        with running(create_app(Counting)) as server:
            with CountingEnv(server.url, message_timeout_s=0.5) as env:
                env.reset()
                with pytest.raises(TimedOut, match=r"step was not answered within 0\.5 s"):
                    env.step(Add(n=1, wait_s=3600))
                assert env.step(Add(n=2)).observation.total == 2, (
                    "the hung step was stopped, the session goes on"
                )
                assert env.state().step_count == 1
            eventually(lambda: server.sessions.active == 0, "the slot is free")

    def test_an_interrupted_step_is_cancelled(self) -> None:
        class Interrupted(Exception): ...

        def interrupt(*_: object) -> None:
            raise Interrupted

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with running(create_app(Counting)) as server, CountingEnv(server.url) as env:
                env.reset()
                signal.setitimer(signal.ITIMER_REAL, 0.5)
                with pytest.raises(Interrupted):
                    env.step(Add(n=1, wait_s=3600))
                assert env.step(Add(n=2)).observation.total == 2
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_a_cancelled_task_cancels_its_step(self) -> None:
        async def play(url: str) -> int:
            async with CountingEnv.aio(url) as env:
                await env.reset()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await env.step(Add(n=1, wait_s=3600))
                return (await env.step(Add(n=2))).observation.total

        with running(create_app(Counting)) as server:
            assert asyncio.run(play(server.url)) == 2


class TestNotebooks:
    """Where an event loop runs already, a blocking client of an async environment has a loop of its own."""

    def test_an_async_environment_runs_beside_a_running_loop(self) -> None:
        async def cell() -> int:
            with ObedientEnv.local(AsyncObedient) as env:
                env.reset()
                assert env.step(Order(do="x")).observation.said == "x"
                [copy] = env.fork(1)
                with copy:
                    copy.step(Order(do="y"))
                return env.state().step_count

        assert asyncio.run(cell()) == 1

    def test_no_thread_is_left_when_the_client_is_closed_or_dropped(self) -> None:
        before = threading.active_count()
        env = ObedientEnv.local(AsyncObedient)
        env.reset()
        env.close()
        assert threading.active_count() == before
        env = ObedientEnv.local(AsyncObedient)
        env.reset()
        assert threading.active_count() == before + 1
        del env
        gc.collect()
        assert threading.active_count() == before


class TestSizes:
    def test_an_oversized_reply_names_the_limit_and_the_session_goes_on(self, server: Running) -> None:
        for way in ("json", "msgpack"):
            with ObedientEnv(server.url, max_message_size_mb=0.01, wire=way) as env:
                env.reset()
                with pytest.raises(MessageTooLarge):
                    env.step(Order(do="x" * 50_000))
                assert env.step(Order(do="small")).observation.said == "small"
                assert env.state().step_count == 2


class ClosingBadly(AsyncObedient):
    async def close(self) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("the database is gone")


def test_a_local_client_whose_environment_fails_to_close_can_be_reset() -> None:
    env = ObedientEnv.local(ClosingBadly)
    for seed in range(2):
        assert env.reset(seed=seed).observation.said == f"seed {seed}"
        with pytest.raises(EnvironmentFailed, match="the database is gone"):
            env.close()
