"""Whatever a step returns or raises is one typed outcome: it ran once, and session and server live on."""

import asyncio
from typing import Any, ClassVar, Literal

import httpx
import pytest
from pydantic import computed_field

from envtorch import Action, EnvClient, Environment, Observation, State, create_app
from envtorch.errors import EnvironmentFailed, InvalidAction, ResetRequired
from tests.support import running


class Do(Action):
    what: str = "well"


class Seen(Observation):
    text: str
    data: Any = None


class Broken(Seen):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def half(self) -> str:
        raise RuntimeError("no half")


RAISED: dict[str, type[BaseException]] = {
    "interrupt": KeyboardInterrupt,
    "exit": SystemExit,
    "generator": GeneratorExit,
    "cancelled": asyncio.CancelledError,
}
RETURNED = ("tuple", "none", "missing", "computed", "cyclic")


class OnLoop(Environment[Do, Seen, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    BLOCKING = False
    ran: ClassVar[list[str]] = []

    def reset(self, seed: int | None = None) -> Seen:
        return Seen(text="reset")

    def step(self, action: Do) -> Any:
        self.ran.append(action.what)
        if action.what == "count":
            return Seen(text=" ".join(self.ran))
        if action.what in RAISED:
            raise RAISED[action.what]
        cycle: list[Any] = []
        cycle.append(cycle)
        match action.what:
            case "tuple":
                return Seen(text="x"), 1.0, False, False, {}
            case "none":
                return None
            case "missing":
                return Seen.model_construct(reward=1.0)  # type: ignore[call-arg]
            case "computed":
                return Broken(text="x")
            case "cyclic":
                return Seen(text="x", data=cycle)
            case "nan" | "inf":
                return Seen(text="x", reward=float(action.what))
        return Seen(text="well", reward=1.0)

    @property
    def state(self) -> State:
        return State()


class OnThread(OnLoop):
    BLOCKING = True


class Awaited(OnLoop):
    BLOCKING = True

    async def reset_async(self, seed: int | None = None) -> Seen:
        return self.reset(seed)

    async def step_async(self, action: Do) -> Any:
        await asyncio.sleep(0)
        return self.step(action)


class DoEnv(EnvClient[Do, Seen, State]): ...


PLACES = [OnLoop, OnThread, Awaited]


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.__name__)
def test_a_step_that_goes_wrong_is_one_typed_error_and_ran_once(kind: type[OnLoop]) -> None:
    with running(create_app(kind, max_concurrent_envs=4)) as server, DoEnv(server.url) as env:
        env.reset()
        for what in (*RETURNED, *RAISED):
            kind.ran.clear()
            with pytest.raises(EnvironmentFailed):
                env.step(Do(what=what))
            assert kind.ran == [what]
            assert env.step(Do()).observation.text == "well"


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("what", ["nan", "inf"])
def test_a_reward_that_is_not_finite_is_a_failure_and_its_step_ran_once(
    kind: type[OnLoop], what: str
) -> None:
    with running(create_app(kind, max_concurrent_envs=4)) as server, DoEnv(server.url) as env:
        env.reset()
        kind.ran.clear()
        with pytest.raises(EnvironmentFailed, match=f"step gave the reward {what}: a reward is a finite"):
            env.step(Do(what=what))
        assert kind.ran == [what]
        assert env.step(Do()).reward == 1.0, "the session goes on"


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.__name__)
def test_healthy_neighbours_in_a_vector_step_once(kind: type[OnLoop]) -> None:
    app = create_app(kind, max_concurrent_envs=4)
    with running(app) as server, DoEnv.vector(server.url, 3) as env:
        env.reset()
        kind.ran.clear()
        result = env.step([Do(), Do(what="tuple"), Do()])
        assert sorted(kind.ran) == ["tuple", "well", "well"]
        assert isinstance(result.errors[1], EnvironmentFailed)
        assert [result.rewards[0], result.rewards[2]] == [1.0, 1.0]


def test_what_was_returned_and_what_was_expected_are_named() -> None:
    with running(create_app(OnLoop)) as server, DoEnv(server.url) as env:
        env.reset()
        with pytest.raises(EnvironmentFailed, match="step returned tuple; it must return Seen"):
            env.step(Do(what="tuple"))


def test_a_step_before_reset_is_refused_before_the_environment_sees_it() -> None:
    OnThread.ran.clear()
    with running(create_app(OnThread, max_concurrent_envs=4)) as server, DoEnv(server.url) as env:
        with pytest.raises(ResetRequired):
            env.step(Do())
        with pytest.raises(InvalidAction, match="seed"):
            env.reset(seed="abc")
        assert httpx.post(server.url + "/reset", json={"seed": "abc"}).status_code == 422
    assert OnThread.ran == []


@pytest.mark.parametrize("wire", ["json", "msgpack", "openenv"])
@pytest.mark.parametrize("isolation", [None, "process"])
def test_a_wrong_return_type_is_one_typed_error_on_every_wire(
    wire: Literal["json", "msgpack", "openenv"], isolation: str | None
) -> None:
    OnThread.ran.clear()
    app = create_app(OnThread, max_concurrent_envs=4, isolation=isolation)
    with running(app) as server, DoEnv(server.url, wire=wire) as env:
        env.reset()
        for what in ("tuple", "none"):
            with pytest.raises(EnvironmentFailed):
                env.step(Do(what=what))
        assert env.step(Do(what="count")).observation.text == "tuple none count", "each ran once"


def test_a_seed_of_the_wrong_type_is_refused_in_process() -> None:
    with DoEnv.local(OnThread) as env, pytest.raises(InvalidAction, match="seed"):
        env.reset(seed="abc")
