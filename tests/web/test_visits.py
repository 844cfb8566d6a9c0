"""Visitors, their sessions and their forks, without a browser."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from envtorch.env import Environment, EnvSpec
from envtorch.errors import CapacityReached, EnvironmentFailed, InvalidAction, NotAllowed, SessionLost
from envtorch.protocol.codec import Codec
from envtorch.server import HTTPEnvServer
from envtorch.settings import ServerMode
from envtorch.web.operations import Operations, Sample, fork_tree, quantile
from envtorch.web.played_environment import PlayedEnvironment, readme_body, reset_options
from envtorch.web.schema import MASK, Kind
from envtorch.web.snippet import GENERIC, same_in_python
from envtorch.web.visits import Visits
from tests.support import Running
from tests.web.environments import Listener, Walker

RIGHT = {"direction": "right"}


def with_visits(
    play: Callable[[Visits], Awaitable[None]],
    *,
    environment: type[Environment[Any, Any, Any]] = Walker,
    mode: ServerMode = ServerMode.SIMULATION,
    capacity: int = 8,
) -> None:
    async def whole() -> None:
        server = HTTPEnvServer(environment, max_concurrent_envs=capacity)
        try:
            await play(Visits(server.sessions, mode))
        finally:
            await server.sessions.close()

    asyncio.run(whole())


def test_each_visitor_has_a_session_and_leaving_ends_it() -> None:
    async def play(visits: Visits) -> None:
        await visits.of("a").reset({"start": 1})
        await visits.of("b").reset({"start": 2})
        await visits.of("a").step(RIGHT)
        assert visits.of("a").entries[-1].observation["position"] == 2
        assert visits.of("b").entries[-1].observation["position"] == 2
        assert (len(visits.of("a").entries), len(visits.of("b").entries)) == (2, 1)
        assert visits.sessions.active == 2
        await visits.leave("a")
        assert visits.sessions.active == 1

    with_visits(play)


def test_a_fork_goes_its_own_way_with_the_same_luck() -> None:
    async def play(visits: Visits) -> None:
        visit = visits.of("a")
        await visit.reset({"seed": 5})
        await visit.step(RIGHT)
        await visit.fork()
        assert visit.current == "fork 1 of main"
        forked = await visit.step(RIGHT)
        visit.current = "main"
        mine = await visit.step({"direction": "left"})
        assert forked.observation["luck"] == mine.observation["luck"]
        assert (forked.observation["position"], mine.observation["position"]) == (6, 4)
        assert visit.branches["main"].state["step_count"] == 2
        parents = [session.parent_id for session in visits.sessions.all()]
        assert parents == [None, visit.branches["main"].session.id]
        tree = fork_tree(visits.sessions.all())
        assert tree.count("<ul>") == 2

    with_visits(play)


def test_faults_are_told_apart() -> None:
    async def play(visits: Visits) -> None:
        visit = visits.of("a")
        with pytest.raises(SessionLost, match="reset first"):
            await visit.fork()
        await visit.reset({"start": 0})
        with pytest.raises(InvalidAction):
            await visit.step({"direction": "up"})
        assert len(visit.entries) == 1  # it was never taken
        with pytest.raises(EnvironmentFailed):
            await visit.step({"direction": "left", "by": 3})
        assert visit.entries[-1].error == "there is a wall to the left"
        with pytest.raises(InvalidAction, match="begin"):
            await visit.reset({"begin": 1})

    with_visits(play)


def test_a_session_that_ended_is_told_of_once_and_replaced_by_a_reset() -> None:
    async def play(visits: Visits) -> None:
        visit = visits.of("a")
        await visit.reset({})
        assert visit.branch is not None
        await visit.branch.session.close("its lease ran out")
        with pytest.raises(SessionLost, match="has ended"):
            await visit.step(RIGHT)
        await visit.reset({})
        assert len(visit.entries) == 1

    with_visits(play)


def test_a_full_server_says_so() -> None:
    async def play(visits: Visits) -> None:
        await visits.of("a").reset({})
        with pytest.raises(CapacityReached):
            await visits.of("b").reset({})
        with pytest.raises(CapacityReached):
            await visits.of("a").fork()

    with_visits(play, capacity=1)


def test_production_mode_runs_no_episode() -> None:
    async def play(visits: Visits) -> None:
        for attempt in (visits.of("a").reset({}), visits.of("a").step(RIGHT), visits.of("a").fork()):
            with pytest.raises(NotAllowed):
                await attempt
        assert visits.sessions.active == 0

    with_visits(play, mode=ServerMode.PRODUCTION)


def test_secrets_are_not_kept() -> None:
    async def play(visits: Visits) -> None:
        visit = visits.of("a")
        await visit.reset({"hf_token": "very-secret"})
        assert visit.entries[0].sent == {"hf_token": MASK}
        assert "very-secret" not in same_in_python(visit.entries, "http://127.0.0.1:1")

    with_visits(play, environment=Listener)


def test_the_same_in_python_is_python_that_runs(echo_server: Running) -> None:
    async def play(visits: Visits) -> None:
        visit = visits.of("a")
        await visit.reset({"seed": 1})
        await visit.step({"message": 'quote " and \\'})
        for client in (
            GENERIC,
            PlayedEnvironment(visits.sessions, Codec(EnvSpec.of(EchoEnvironment))).client,
        ):
            source = same_in_python(visit.entries, echo_server.url, client)
            names: dict[str, Any] = {}
            await asyncio.to_thread(exec, source, names)
            seen = names["result"].observation
            message = seen["echoed_message"] if client is GENERIC else seen.echoed_message
            assert message == 'quote " and \\'
        assert "from envtorch.envs.echo_env import EchoAction, EchoEnv\n" in source
        assert "env.step(EchoAction(message=" in source

    from envtorch.envs.echo_env.environment import EchoEnvironment

    with_visits(play, environment=EchoEnvironment)


def test_operations_count_steps_and_errors() -> None:
    clock = iter(float(second) for second in range(100))

    async def play(visits: Visits) -> None:
        operations = Operations(visits.sessions, lambda: next(clock))
        operations.sample()
        visit = visits.of("a")
        for _ in range(6):
            await visit.step(RIGHT if len(visit.entries) % 2 else {"direction": "left"})
        with pytest.raises(InvalidAction):
            await visit.step({})
        operations.sample()
        assert operations.rates() == [7.0]
        drawn = operations.html()
        assert "<b>1 / 8</b>" in drawn
        assert "VALIDATION_ERROR" in drawn
        assert "ready" in drawn

    with_visits(play)


def test_a_quantile_lies_in_its_bucket() -> None:
    bounds = (0.001, 0.01, float("inf"))
    before = Sample(0.0, 0, 0, tuple((bound, 0.0) for bound in bounds))
    after = Sample(1.0, 10, 0, ((0.001, 5.0), (0.01, 10.0), (float("inf"), 10.0)))
    assert quantile(before, after, 0.5) == pytest.approx(0.001)
    assert quantile(before, after, 0.75) == pytest.approx(0.0055)
    assert quantile(before, before, 0.5) is None


def test_reset_options_come_from_the_signature() -> None:
    server = HTTPEnvServer(Walker)
    fields = PlayedEnvironment(server.sessions, server.codec).reset_fields
    assert [(field.name, field.kind, field.default) for field in fields] == [
        ("seed", Kind.INTEGER, None),
        ("start", Kind.INTEGER, 4),
    ]
    anything = HTTPEnvServer(Listener)
    names = [field.name for field in PlayedEnvironment(anything.sessions, anything.codec).reset_fields]
    assert names == ["seed", "episode_id", "other_options"]
    assert reset_options({"seed": 1, "other_options": {"level": 2}}) == {"seed": 1, "level": 2}


def test_a_readme_loses_its_front_matter() -> None:
    assert readme_body("---\ntitle: x\n---\n# Hello") == "# Hello"


@pytest.mark.skipif(sys.platform != "linux", reason="a process per session needs Linux")
def test_an_environment_in_a_process_of_its_own_is_drawn_and_forked_too() -> None:
    async def whole() -> None:
        server = HTTPEnvServer(Walker, isolation="process", max_concurrent_envs=4)
        try:
            visit = Visits(server.sessions, ServerMode.SIMULATION).of("a")
            await visit.reset({"start": 1})
            assert visit.branch is not None
            seen = dict(visit.entries[-1].observation)
            assert "🏠" in await visit.branch.ask("render_web", seen)
            assert await visit.branch.ask("web_actions", seen) == [
                ["← left", {"direction": "left"}],
                ["right →", {"direction": "right"}],
            ]
            assert await visit.branch.ask("no_such_method") is None
            await visit.fork()
            await visit.step(RIGHT)
            assert [len(branch.entries) for branch in visit.branches.values()] == [1, 2]
        finally:
            await server.sessions.close()

    asyncio.run(whole())
