"""`isolation="process"`: each session's environment in a process of its own, which may die alone."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envtorch import ConcurrencyConfig, EnvClient
from envtorch.errors import (
    ConfigurationError,
    EnvironmentFailed,
    FactoryFailed,
    InvalidAction,
    OutOfResources,
    SessionLost,
    TimedOut,
    Unsupported,
)
from envtorch.server import create_app
from tests import patient
from tests.server.environments import AsyncObedient, Count, Mixed, Obedient, Order, Quick, Report
from tests.server.isolated import AsyncReckless, Failing, Reckless, Stillborn, make_reckless
from tests.server.test_extended import extended
from tests.server.walkers import WALKERS, Walker
from tests.support import PATIENCE_S, Running, eventually, running


class Client(EnvClient[Order, Report, Count]):
    """Waits for a session as long as a busy machine may need for its process."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **{"connect_timeout_s": PATIENCE_S, **options})


def do(env: Client, order: str, **options: Any) -> Any:
    return env.step(Order(do=order), **options).observation.data


@contextmanager
def serving(source: Any, *, room: int = 8, **options: Any) -> Iterator[Running]:
    config = ConcurrencyConfig(max_concurrent_envs=room, reconnect_grace=30)
    app = create_app(source, Order, Report, concurrency_config=config, isolation="process", **options)
    with running(app) as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(Reckless, room=32) as running_server:
        yield running_server


@pytest.fixture(params=["json", "msgpack", "openenv"])
def env(request: pytest.FixtureRequest, server: Running) -> Iterator[Client]:
    with Client(server.url, wire=request.param) as client:
        client.reset()
        yield client


def lives(process: int) -> bool:
    """Whether a process is in the table, as more than a corpse that was not yet buried."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def is_listed(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def children(process: int) -> list[int]:
    """Its children, whichever of its threads started them."""
    lists = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
    return [int(child) for child in " ".join(lists).split()]


def keeper(server: Running) -> int:
    launcher = server.sessions._launcher
    assert launcher is not None
    assert launcher.supervisor_process is not None
    return launcher.supervisor_process


def zygote_of(server: Running) -> int:
    """The one child of the keeper that leads no session of its own."""
    found = list[int]()

    def is_there() -> bool:
        found[:] = [child for child in children(keeper(server)) if os.getsid(child) != child]
        return len(found) == 1

    eventually(is_there, "there is a zygote")
    return found[0]


class TestCalls:
    """What holds for every other runner holds here."""

    @pytest.mark.parametrize("source", [Obedient, AsyncObedient, Mixed, Quick])
    def test_every_kind_of_environment(self, source: Any) -> None:
        with serving(source) as server, Client(server.url) as env:
            assert env.reset(seed=3).observation.said == "seed 3"
            assert env.step(Order(do="hello")).observation.said == "hello"
            assert env.state().step_count == 1

    def test_an_episode(self, env: Client) -> None:
        assert env.reset(seed=1).observation.said == "seed 1"
        result = env.step(Order(do="x"))
        assert (result.observation.said, result.done) == ("x", False)
        assert env.state().step_count == 1

    def test_sessions_are_processes(self, server: Running, env: Client) -> None:
        with Client(server.url) as other:
            other.reset()
            processes = {do(env, "process"), do(other, "process"), os.getpid()}
            assert len(processes) == 3
            assert do(other, "mine") == ["process", "mine"]  # a module's globals are its own

    def test_what_the_environment_raises(self, env: Client) -> None:
        with pytest.raises(EnvironmentFailed, match="kaboom"):
            do(env, "fail")
        with pytest.raises(EnvironmentFailed, match="I am off"):
            do(env, "leave")
        assert env.state().step_count == 2  # and it goes on

    def test_an_invalid_action(self, env: Client) -> None:
        with pytest.raises(InvalidAction, match="not legal"):
            env.step({"do": "illegal"})  # type: ignore[arg-type]
        assert env.state().step_count == 0

    def test_a_large_observation(self, env: Client) -> None:
        assert len(do(env, "large")) == 3_000_000

    def test_an_array(self) -> None:
        with serving(Obedient) as server, Client(server.url, wire="msgpack") as env:
            env.reset()
            assert np.array_equal(do(env, "array"), np.eye(2))

    def test_sessions_draw_numbers_of_their_own(self, server: Running) -> None:
        with Client(server.url) as one, Client(server.url) as other:
            one.reset()
            other.reset()
            first, second = do(one, "draw"), do(other, "draw")
            assert first[0] != second[0]
            assert first[1] != second[1]

    def test_an_async_environments_tasks_go_on_between_calls(self) -> None:
        with serving(AsyncReckless) as server, Client(server.url) as env:
            env.reset()
            before = do(env, "ticks")
            eventually(lambda: do(env, "ticks") > before + 3, "the task goes on")

    def test_a_process_has_its_socket_and_nothing_else(self, env: Client) -> None:
        # 0, 1, 2, the socket, and the directory that is being listed
        assert len(do(env, "descriptors")) == 5

    def test_a_factory_by_name(self) -> None:
        with serving(make_reckless) as server, Client(server.url) as env:
            env.reset()
            assert do(env, "x") == ["x"]

    def test_over_http(self, server: Running) -> None:
        with patient.Client(base_url=server.url) as http:
            assert http.post("/reset", json={"seed": 4}).json()["observation"]["said"] == "seed 4"
            assert http.post("/step", json={"action": {"do": "x"}}).json()["observation"]["said"] == "x"
            assert http.get("/state").json()["step_count"] == 1
            assert http.get("/metadata").json()["name"] == "Reckless"
            assert "events" in http.get("/schema").json()["state"]["properties"]
            assert http.get("/health").json() == {"status": "healthy"}
            assert http.post("/Reckless/tasks", json={"split": "train"}).status_code == 501
            assert http.post("/close").json() == {"closed": True}

    def test_the_session_says_so(self, server: Running) -> None:
        with extended(server) as wire:
            assert {"fork", "isolation"} <= set(wire.open()["supports"])


class TestDeaths:
    """A session dies with its process, of a cause that is told, and no other session notices."""

    @pytest.fixture
    def neighbour(self, server: Running) -> Iterator[Client]:
        with Client(server.url) as client:
            client.reset()
            before = do(client, "process")
            yield client
            assert do(client, "process") == before

    @pytest.mark.parametrize(
        ("order", "error", "details"),
        [
            ("exit 3", EnvironmentFailed, {"exit_status": 3}),
            ("exit 0", EnvironmentFailed, {"exit_status": 0}),
            ("segfault", EnvironmentFailed, {"signal": "SIGSEGV"}),
            ("kill", OutOfResources, {"signal": "SIGKILL"}),
            ("garbage", EnvironmentFailed, {}),
        ],
    )
    def test_a_crash_is_typed(
        self, server: Running, neighbour: Client, order: str, error: type[Any], details: dict[str, Any]
    ) -> None:
        with Client(server.url) as env:
            env.reset()
            process = do(env, "process")
            with pytest.raises(error) as caught:
                do(env, order)
            assert type(caught.value) is error
            assert details.items() <= caught.value.details.items()
            assert caught.value.details["usable"] is False
            with pytest.raises(SessionLost):
                env.state()
            eventually(lambda: not is_listed(process), "nothing is left of it")

    @pytest.mark.parametrize("order", ["hang", "spin"])
    def test_a_step_past_its_deadline_is_killed(self, server: Running, neighbour: Client, order: str) -> None:
        active = server.sessions.active
        with Client(server.url) as env:
            env.reset()
            process = do(env, "process")
            with pytest.raises(TimedOut) as caught:
                do(env, order, timeout_s=0.1)
            assert caught.value.details["usable"] is False
            eventually(lambda: not is_listed(process), "the process is gone")
            eventually(lambda: server.sessions.active == active, "its slot is free")
            with pytest.raises(SessionLost, match="killed"):
                env.state()

    def test_a_cancelled_step_is_killed(self, server: Running) -> None:
        with extended(server) as wire:
            wire.open()
            wire.ask(type="reset", id=1)
            process = wire.ask(**wire.step(2, "process"))["data"]["observation"]["data"]
            wire.say(wire.step(3, "hang"))
            wire.say({"type": "cancel", "id": 4, "data": {"id": 3}})
            answers = wire.hear_all({3, 4})
            assert answers[4]["data"]["cancelled"] is True
            assert answers[3]["data"]["code"] == "CANCELLED"
            eventually(lambda: not is_listed(process), "the process is gone")

    def test_one_that_dies_between_calls(self, server: Running) -> None:
        with Client(server.url) as env:
            env.reset()
            process = do(env, "process")
            os.kill(process, signal.SIGKILL)
            eventually(lambda: not is_listed(process), "it is dead")
            with pytest.raises(OutOfResources):
                do(env, "x")

    def test_one_that_dies_before_its_session_is_replaced(self) -> None:
        with serving(Reckless) as server:
            assert patient.get(f"{server.url}/metadata").status_code == 200
            spare: Any = server.sessions.questions.spare
            os.kill(spare.process, signal.SIGKILL)
            eventually(lambda: spare.ended is not None, "its death is noticed")
            with Client(server.url) as env:
                env.reset()
                assert do(env, "process") != spare.process

    def test_one_that_dies_before_its_first_call_is_a_fault_of_the_infrastructure(self) -> None:
        with serving(Reckless) as server, server.socket() as raw:
            eventually(lambda: len(server.sessions._live) == 1, "the session is open")
            runner: Any = next(iter(server.sessions._live.values())).runner
            os.kill(runner.process, signal.SIGKILL)
            eventually(lambda: runner._connection.is_lost, "its death is noticed")
            raw.send('{"type":"reset","data":{}}')
            assert "SESSION_ERROR" in str(raw.recv(PATIENCE_S))

    @pytest.mark.parametrize("end", ["close", "exit 1"])
    def test_what_it_started_ends_with_it(self, server: Running, end: str) -> None:
        with Client(server.url) as env:
            env.reset()
            started = do(env, "start")
            assert lives(started)
            if end != "close":
                with pytest.raises(EnvironmentFailed):
                    do(env, end)
        eventually(lambda: not is_listed(started), "what it started is gone")

    def test_a_constructor_that_raises(self) -> None:
        with serving(Failing) as server, pytest.raises(FactoryFailed) as caught:
            Client(server.url).connect()
        assert caught.value.details["reason"] == "no such licence server"

    def test_a_constructor_that_ends_its_process(self) -> None:
        with serving(Stillborn) as server:
            with pytest.raises(EnvironmentFailed):
                Client(server.url).connect()
            assert server.sessions.active == 0


class TestKeeping:
    def test_closing_leaves_nothing(self) -> None:
        with serving(Reckless) as server:
            with Client(server.url) as env:
                env.reset()
                process = do(env, "process")
            eventually(lambda: not is_listed(process), "a closed session's process is gone")
            with Client(server.url) as env:
                env.reset()
                family = [keeper(server), *children(keeper(server)), do(env, "start")]
                assert len(family) >= 4
        eventually(lambda: not any(map(is_listed, family)), "a stopped server's processes are gone")

    def test_a_dead_zygote_comes_back_and_its_sessions_live(self) -> None:
        with serving(Reckless) as server, Client(server.url) as env:
            env.reset()
            session = do(env, "process")
            zygote = zygote_of(server)
            os.kill(zygote, signal.SIGKILL)
            with Client(server.url) as other:
                other.reset()
                assert do(other, "x") == ["x"]
            assert do(env, "process") == session
            eventually(lambda: not is_listed(zygote), "the dead one is buried")

    def test_a_dead_keeper_takes_all_with_it_and_comes_back(self) -> None:
        with serving(Reckless) as server, Client(server.url) as env:
            env.reset()
            session, before = do(env, "process"), keeper(server)
            os.kill(before, signal.SIGKILL)
            eventually(lambda: not lives(session), "its sessions end with it")
            with pytest.raises(SessionLost):
                do(env, "x")
            with Client(server.url) as other:
                other.reset()
                assert do(other, "x") == ["x"]
            assert keeper(server) != before

    @pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
    def test_a_server_of_the_command_line_leaves_nothing_however_it_ends(self, end: signal.Signals) -> None:
        target = "tests.server.isolated:Reckless"
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            options = ["--isolation", "process", "--fd", str(listener.fileno())]
            command = [sys.executable, "-m", "envtorch.cli", "serve", target, *options]
            served = subprocess.Popen(command, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL)
        client = Client(url, connect_timeout_s=PATIENCE_S, reconnect_s=0.1)
        try:
            client.reset()
            [kept] = children(served.pid)
            family = [kept, *children(kept), do(client, "start")]
            assert do(client, "process") in family
        finally:
            served.send_signal(end)
            served.wait(PATIENCE_S)
            client.close()
        eventually(lambda: not any(map(lives, family)), "its processes end with it")

    @pytest.mark.slow
    def test_random_deaths_under_load(self) -> None:
        """Sessions and the zygote are killed while others play; the others see nothing of it."""
        with serving(Reckless, room=16) as server:
            stop, failures = threading.Event(), list[BaseException]()

            def play() -> None:
                try:
                    with Client(server.url) as env:
                        env.reset()
                        while not stop.is_set():
                            do(env, "process")
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=play) for _ in range(4)]
            for thread in threads:
                thread.start()
            try:
                for turn in range(10):
                    if turn % 3 == 2:
                        os.kill(zygote_of(server), signal.SIGKILL)
                    with Client(server.url) as victim:
                        victim.reset()
                        os.kill(do(victim, "process"), signal.SIGKILL)
                        with pytest.raises(OutOfResources):
                            do(victim, "x")
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            assert failures == []
            eventually(lambda: server.sessions.active == 0, "every slot is free")
            eventually(lambda: len(children(keeper(server))) == 1, "only the zygote is left")


class TestForks:
    @pytest.mark.parametrize("source", WALKERS)
    def test_are_identical_then_diverge(self, source: Any) -> None:
        with serving(source) as server, Client(server.url) as parent:
            parent.reset(seed=7)
            do(parent, "go")
            before = parent.state()
            twin, other = parent.fork(2)
            with twin, other:
                assert twin.state() == other.state() == before
                seen = [do(parent, "go") for _ in range(3)]
                assert [do(twin, "go") for _ in range(3)] == seen
                assert do(other, "elsewhere") == seen[0]
                assert parent.state() == twin.state() != other.state()

    @pytest.mark.parametrize("source", [Reckless, AsyncReckless])
    def test_copy_globals_and_their_random_state(self, source: Any) -> None:
        with serving(source) as server, Client(server.url) as parent:
            parent.reset(seed=5)
            do(parent, "x")
            [child] = parent.fork()
            with child:
                assert do(child, "draw") == do(parent, "draw")
                assert do(child, "mine") == ["x", "draw", "mine"]
                assert do(parent, "x") == ["x", "draw", "x"]
                assert do(parent, "process") != do(child, "process")

    def test_of_a_copy_whose_parent_is_closed_first(self, server: Running) -> None:
        with Client(server.url) as parent:
            parent.reset(seed=1)
            do(parent, "a")
            [child] = parent.fork()
        process = do(child, "process")
        [grandchild] = child.fork()
        os.kill(process, signal.SIGKILL)
        with grandchild:
            assert do(grandchild, "b") == ["a", "process", "b"]
        child.close()

    @pytest.mark.slow
    def test_a_hundred(self) -> None:
        with serving(Walker, room=101) as server, Client(server.url) as parent:
            parent.reset(seed=3)
            do(parent, "go")
            copies = parent.fork(100)
            expected = do(parent, "go")
            assert [do(copy, "go") for copy in copies] == [expected] * 100
            for copy in copies:
                copy.close()
            eventually(lambda: server.sessions.active == 1, "their slots are free")
            eventually(lambda: len(children(keeper(server))) == 2, "the zygote and the parent are left")

    def test_one_with_threads_says_so(self, server: Running) -> None:
        with Client(server.url) as env:
            env.reset()
            do(env, "thread")
            with pytest.raises(Unsupported, match="2 threads"):
                env.fork()
            assert do(env, "x") == ["thread", "x"]

    def test_hold_nothing_of_each_other(self, server: Running) -> None:
        with Client(server.url) as parent:
            parent.reset()
            copies = parent.fork(3)
            counts = [len(do(env, "descriptors")) for env in (parent, *copies)]
            assert counts == [5, 5, 5, 5]
            for copy in copies:
                copy.close()

    def test_under_load(self, server: Running) -> None:
        async def play() -> None:
            async with Client.aio(server.url) as busy, Client.aio(server.url) as parent:
                await busy.reset()
                await parent.reset(seed=2)
                for _ in range(5):
                    load = [asyncio.ensure_future(busy.step(Order(do="x"))) for _ in range(20)]
                    copies = await parent.fork(3)
                    await asyncio.gather(*load)
                    draws = [await copy.step(Order(do="draw")) for copy in (parent, *copies)]
                    assert len({str(draw.observation.data) for draw in draws}) == 1
                    await asyncio.gather(*(copy.close() for copy in copies))
                assert (await busy.state()).step_count == 100

        asyncio.run(play())


class TestRefusals:
    def test_what_has_no_name(self) -> None:
        with pytest.raises(ConfigurationError, match="by its name"):
            create_app(lambda: Reckless(), Order, Report, isolation="process")

    def test_an_instance(self) -> None:
        with pytest.raises(ConfigurationError, match="not an instance"):
            create_app(Reckless(), isolation="process")

    def test_another_word(self) -> None:
        with pytest.raises(ConfigurationError, match="'process' or left out"):
            create_app(Reckless, isolation="container")
