"""Forked sessions: exact copies at a step boundary, over every door that can fork, wherever they live."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from envtorch import ConcurrencyConfig, EnvClient, Environment
from envtorch.errors import CapacityReached, InvalidAction, SessionLost, TimedOut, Unsupported
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.server import create_app
from tests.server.environments import Count, Order, Report
from tests.server.test_extended import extended
from tests.server.walkers import (
    WALKERS,
    AsyncWalker,
    Cloner,
    Locked,
    SecondFails,
    Selfish,
    Slow,
    Unwilling,
    Walker,
)
from tests.support import Running, cut, eventually, running

Make = Callable[[], Environment[Any, Any, Any]]


class Walk(EnvClient[Order, Report, Count]): ...


def walk(env: Walk, steps: int, word: str = "go") -> list[tuple[Any, Any]]:
    """What an agent sees of so many steps."""
    results = [env.step(Order(do=word)) for _ in range(steps)]
    return [(result.observation.data, result.reward) for result in results]


@contextmanager
def serving(source: Make, *, room: int = 8, **options: Any) -> Iterator[Running]:
    config = ConcurrencyConfig(max_concurrent_envs=room, reconnect_grace=30)
    with running(create_app(source, Order, Report, concurrency_config=config, **options)) as server:
        yield server


@contextmanager
def closing(*clients: Walk) -> Iterator[None]:
    with ExitStack() as stack:
        for client in clients:
            stack.callback(client.close)
        yield


@pytest.fixture(params=["json", "msgpack", "local"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def a_walk(place: str, source: Make, *, room: int = 8) -> Iterator[Walk]:
    """A client on an environment: served on one wire or the other, or in this process."""
    if place == "local":
        with Walk.local(source) as env:
            yield env
        return
    with serving(source, room=room) as server, Walk(server.url, wire=place) as env:  # type: ignore[arg-type]
        yield env


class TestCopies:
    @pytest.mark.parametrize("source", WALKERS)
    def test_are_identical_then_diverge(self, source: Make, place: str) -> None:
        with a_walk(place, source) as parent:
            parent.reset(seed=7)
            walk(parent, 3)
            before = parent.state()
            twin, other = parent.fork(2)
            with closing(twin, other):
                assert twin.state() == other.state() == before
                seen = walk(parent, 3)
                assert walk(twin, 3) == seen
                assert walk(other, 1, "elsewhere") == seen[:1]
                assert parent.state().events == twin.state().events
                assert len(other.state().events) == 4
                assert other.state().events[:3] == before.events
                assert other.state().events[3].startswith("elsewhere")

    def test_of_a_copy(self, place: str) -> None:
        with a_walk(place, Walker) as parent:
            parent.reset(seed=1)
            walk(parent, 2)
            [child] = parent.fork()
            walk(child, 1, "child")
            [grandchild] = child.fork()
            with closing(child, grandchild):
                assert grandchild.state() == child.state()
                assert walk(grandchild, 2) == walk(child, 2)
                assert parent.state().step_count == 2

    def test_outlive_the_one_they_are_copied_from(self, place: str) -> None:
        with a_walk(place, Walker) as parent:
            parent.reset(seed=1)
            walk(parent, 2)
            before = parent.state()
            [child] = parent.fork()
            parent.close()
            with closing(child):
                assert child.state() == before
                walk(child, 1)
                assert child.state().step_count == 3

    def test_can_begin_an_episode_of_their_own(self, place: str) -> None:
        with a_walk(place, Walker) as parent:
            parent.reset(seed=1)
            walk(parent, 2)
            [child] = parent.fork()
            with closing(child):
                child.reset(seed=2)
                assert child.state().step_count == 0
                assert parent.state().step_count == 2

    def test_are_made_before_the_first_reset_too(self, place: str) -> None:
        with a_walk(place, Walker) as parent:
            [child] = parent.fork()
            with closing(child):
                assert child.reset(seed=1).observation.said == "begun"

    def test_fewer_than_one_are_refused(self, place: str) -> None:
        with a_walk(place, Walker) as parent, pytest.raises(InvalidAction, match="one copy or more"):
            parent.fork(0)

    def test_a_hundred(self) -> None:
        with a_walk("msgpack", Walker, room=101) as parent:
            parent.reset(seed=3)
            walk(parent, 2)
            children = parent.fork(100)
            with closing(*children):
                expected = walk(parent, 1)
                assert [walk(child, 1) for child in children] == [expected] * 100

    def test_live_on_threads_of_their_own(self) -> None:
        with a_walk("json", Walker) as parent:
            parent.reset()
            children = parent.fork(2)
            with closing(*children):
                threads = {env.step(Order()).observation.thread for env in (parent, *children)}
                assert len(threads) == 3


class TestAsync:
    @pytest.mark.parametrize("local", [True, False])
    @pytest.mark.parametrize("source", [Walker, AsyncWalker])
    def test_the_twin_forks_alike(self, local: bool, source: Make) -> None:
        async def play(make: Callable[[], Any]) -> None:
            async with make() as parent:
                await parent.reset(seed=5)
                await parent.step(Order())
                children = await parent.fork(3)
                expected = (await parent.step(Order())).reward
                results = await asyncio.gather(*(child.step(Order()) for child in children))
                assert [result.reward for result in results] == [expected] * 3
                with pytest.raises(InvalidAction):
                    await parent.fork(0)
                await asyncio.gather(*(child.close() for child in children))

        if local:
            asyncio.run(play(lambda: Walk.aio.local(source)))
            return
        with serving(source) as server:
            asyncio.run(play(lambda: Walk.aio(server.url)))
            eventually(lambda: server.sessions.active == 0, "every session is closed")


class TestRefusals:
    def test_an_environment_that_cannot_be_copied_says_why(self, place: str) -> None:
        with a_walk(place, Locked) as env:
            env.reset(seed=1)
            with pytest.raises(Unsupported, match=r"Locked cannot be forked.*cannot pickle '_thread.lock'"):
                env.fork()
            walk(env, 1)  # and goes on

    def test_the_author_has_the_last_word(self, place: str) -> None:
        with a_walk(place, Unwilling) as env, pytest.raises(Unsupported, match="licence covers one"):
            env.fork()

    def test_a_copy_that_is_none(self, place: str) -> None:
        with a_walk(place, Selfish) as env, pytest.raises(Unsupported, match="another environment"):
            env.fork()

    def test_all_or_none(self, place: str) -> None:
        SecondFails.closed.clear()
        with a_walk(place, SecondFails) as env:
            with pytest.raises(Unsupported, match="RuntimeError: enough"):
                env.fork(2)
            assert len(SecondFails.closed) == 1  # the one that was made

    def test_far_too_many_are_refused_before_anything_is_made_for_each(self) -> None:
        with serving(Walker, room=3) as server, Walk(server.url) as env:
            env.reset(seed=1)
            with pytest.raises(CapacityReached):
                env.fork(2**40)  # a list of so many fits into no memory
            assert server.sessions.active == 1

    def test_no_room_for_all_takes_none(self) -> None:
        with serving(Walker, room=3) as server, Walk(server.url) as env:
            env.reset(seed=1)
            with pytest.raises(CapacityReached):
                env.fork(3)
            assert server.sessions.active == 1
            children = env.fork(2)
            with closing(*children):
                assert server.sessions.active == 3
            eventually(lambda: server.sessions.active == 1, "the copies' slots are free")

    def test_one_that_cannot_be_copied_takes_no_slot(self) -> None:
        with serving(Locked, room=3) as server, Walk(server.url) as env:
            env.reset()
            with pytest.raises(Unsupported):
                env.fork(2)
            assert server.sessions.active == 1

    def test_a_shared_environment(self) -> None:
        with serving(Walker(), room=3) as server, Walk(server.url) as env:  # type: ignore[arg-type]
            with pytest.raises(Unsupported, match="shares the one instance"):
                env.fork()
            with extended(server) as wire:
                assert "fork" not in wire.open()["supports"]

    def test_on_openenvs_wire(self) -> None:
        with serving(Walker) as server, Walk(server.url, wire="openenv") as env:
            env.reset()
            with pytest.raises(Unsupported, match="OpenEnv's wire"):
                env.fork()

    def test_on_a_production_server(self) -> None:
        with serving(Walker, mode="production") as server, extended(server) as wire:
            assert "fork" not in wire.open()["supports"]
            assert wire.ask(type="fork", id=1)["data"]["code"] == "NOT_ALLOWED"


@pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
class TestWire:
    def test_a_repeated_fork_makes_no_more_copies(self, format: Format) -> None:
        with serving(Walker) as server, extended(server, format) as wire:
            assert "fork" in wire.open()["supports"]
            first = wire.ask(type="fork", id=1, data={"n": 2})
            assert wire.ask(type="fork", id=1, data={"n": 2}) == first
            assert server.sessions.active == 3
            told = first["data"]["sessions"]
            assert len({session["token"] for session in told}) == 2
            assert {session["grace_s"] for session in told} == {30}

    def test_copies_are_taken_up_by_their_tokens_on_any_channel(self, format: Format) -> None:
        with serving(Walker) as server, extended(server, format) as wire:
            wire.open()
            wire.ask(type="reset", id=1, data={"seed": 1})
            wire.ask(**wire.step(2, "x"))
            [copy] = wire.ask(type="fork", id=3)["data"]["sessions"]
            taken = wire.ask(type="attach", id=4, ch=9, data={"token": copy["token"]})["data"]
            assert taken["session_id"] == copy["session_id"]
            assert taken["last_id"] == 0
            assert wire.ask(type="state", id=1, ch=9)["data"]["step_count"] == 1
            session = server.sessions.by_token(copy["token"])
            assert session is not None
            assert session.info.step_count == 1

    @pytest.mark.parametrize("data", [{"n": 0}, {"n": "many"}, {"m": 1}])
    def test_a_malformed_fork_is_refused(self, format: Format, data: dict[str, Any]) -> None:
        with serving(Walker) as server, extended(server, format) as wire:
            wire.open()
            assert wire.ask(type="fork", id=1, data=data)["data"]["code"] == "VALIDATION_ERROR"
            assert server.sessions.active == 1


class TestLife:
    def test_copies_that_nobody_takes_up_expire(self) -> None:
        config = ConcurrencyConfig(max_concurrent_envs=4, reconnect_grace=0.2)
        app = create_app(Walker, concurrency_config=config)
        with running(app) as server, extended(server) as wire:
            wire.open()
            wire.ask(type="fork", id=1, data={"n": 3})
            eventually(lambda: server.sessions.active == 1, "the copies' leases are over")

    def test_a_copy_survives_its_socket(self) -> None:
        with serving(Cloner) as server, Walk(server.url) as parent:
            parent.reset(seed=1)
            [child] = parent.fork()
            with closing(child):
                walk(child, 1)
                cut(child)
                walk(child, 1)
                assert child.state().step_count == 2

    def test_a_copy_that_is_gone_is_lost(self) -> None:
        config = ConcurrencyConfig(max_concurrent_envs=4, reconnect_grace=0.1)
        with running(create_app(Walker, concurrency_config=config)) as server, Walk(server.url) as parent:
            [child] = parent.fork()
            cut(child)
            eventually(lambda: server.sessions.active == 1, "its grace is over")
            with closing(child), pytest.raises(SessionLost):
                child.state()

    def test_a_fork_past_its_deadline_frees_its_slots(self) -> None:
        Slow.gate.clear()
        with serving(Slow) as server, Walk(server.url) as parent:
            with pytest.raises(TimedOut) as caught:
                parent.fork(3, timeout_s=0.05)
            assert caught.value.details["usable"] is False
            Slow.gate.set()
            eventually(lambda: server.sessions.active == 0, "no slot is left behind")

    def test_copies_that_are_made_after_the_deadline_are_closed(self) -> None:
        for notes in (Slow.made, Slow.closed):
            notes.clear()
        Slow.gate.clear()
        with serving(Slow) as server, Walk(server.url) as parent:
            with pytest.raises(TimedOut):
                parent.fork(3, timeout_s=0.05)
            Slow.gate.set()
            eventually(lambda: len(Slow.made) == 3, "the copies are made")
            eventually(lambda: set(Slow.made) < set(Slow.closed), "they and their origin are closed")
            assert len(Slow.closed) == 4

    def test_waits_for_the_step_that_runs_and_disturbs_nobody(self) -> None:
        """Sessions are forked while others are stepped from eight threads."""
        with serving(Walker, room=40) as server:
            stop, failures = threading.Event(), list[BaseException]()

            def load() -> None:
                try:
                    with Walk(server.url) as env:
                        env.reset(seed=1)
                        while not stop.is_set():
                            walk(env, 1)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=load) for _ in range(8)]
            for thread in threads:
                thread.start()
            try:
                with Walk(server.url) as parent:
                    parent.reset(seed=9)
                    for _ in range(5):
                        children = parent.fork(4)
                        with closing(*children):
                            expected = walk(parent, 2)
                            assert [walk(child, 2) for child in children] == [expected] * 4
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            assert failures == []
            eventually(lambda: server.sessions.active == 0, "every slot is free")
