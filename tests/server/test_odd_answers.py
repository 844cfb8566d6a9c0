"""What environments return or raise that nobody expects: their own failure, and no call without an end."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from envtorch import Action, EnvClient, Environment, Observation, State, create_app
from envtorch.errors import (
    CapacityReached,
    ConnectFailed,
    Draining,
    EnvironmentFailed,
    EnvTorchError,
    FactoryFailed,
    InternalError,
    InvalidAction,
    ProtocolError,
    SessionLost,
)
from tests.support import Running, running


class Do(Action):
    what: str = ""


class Seen(Observation):
    text: str = ""
    size: float = 0.0


class Mute(KeyboardInterrupt):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


INFRASTRUCTURE: dict[str, type[EnvTorchError]] = {
    kind.__name__: kind for kind in (SessionLost, CapacityReached, Draining, InternalError, ConnectFailed)
}
"""What an environment may get to see that is itself a client of another server."""


class NoLength(list[Any]):
    def __len__(self) -> int:
        raise RuntimeError("no length")


def answer(what: str) -> Any:
    if what == "mute":
        raise Mute
    if what in INFRASTRUCTURE:
        raise INFRASTRUCTURE[what]("of another server")
    if what == "array":
        return {"text": what, "done": np.array([True, False])}
    if what == "misfit":
        nothing: Any = None
        return Seen.model_construct(
            text=nothing, size=1.0, done=False, reward=1.0, metadata={}, terminated=None, truncated=None
        )
    seen = Seen(text=what, reward=1.0, size=math.inf if what == "endless" else 1.0)
    if what == "flag":
        seen.terminated = np.bool_(True)  # type: ignore[assignment]
    return seen


class Threaded(Environment[Do, Seen, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None) -> Seen:
        return Seen()

    def step(self, action: Do) -> Seen:
        return answer(action.what)  # type: ignore[no-any-return]

    @property
    def state(self) -> State:
        return State()


class OnLoop(Threaded):
    BLOCKING = False


class Together(OnLoop):
    @classmethod
    def step_many(cls, environments: Sequence[Any], actions: Any) -> Any:
        if any(action.what == "no length" for action in actions):
            return NoLength([Seen()] * len(environments))
        return [answer(action.what) for action in actions]


class OddEnv(EnvClient[Do, Seen, State]): ...


@pytest.fixture(scope="module", params=["threaded", "on the loop", "together", "process"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    kinds: dict[str, Any] = {"on the loop": OnLoop, "together": Together}
    isolation: Any = {"isolation": "process"} if request.param == "process" else {}
    with running(create_app(kinds.get(request.param, Threaded), sessions=8, **isolation)) as found:
        yield found


@pytest.mark.parametrize("what", ["mute", "array", *INFRASTRUCTURE])
def test_it_is_the_environments_failure(server: Running, what: str) -> None:
    with OddEnv(server.url, message_timeout_s=10) as env:
        env.reset()
        with pytest.raises(EnvironmentFailed):
            env.step(Do(what=what))
        assert env.step(Do(what="on")).observation.text == "on"


@pytest.mark.parametrize("what", ["mute", "array", "no length", "SessionLost"])
def test_a_vector_goes_on(server: Running, what: str) -> None:
    with OddEnv.vector(server.url, 3, message_timeout_s=10) as envs:
        envs.reset()
        errors = envs.step([Do(), Do(what=what), Do()]).errors
        assert all(isinstance(error, EnvironmentFailed) for error in errors.values())
        assert what == "no length" or 1 in errors
        assert [seen.text for seen in envs.step([Do(what=name) for name in "abc"]).observations] == list(
            "abc"
        )


def test_a_flag_of_numpy_is_a_flag(server: Running) -> None:
    with OddEnv(server.url) as env:
        env.reset()
        result = env.step(Do(what="flag"))
        assert result.done
        assert result.terminated is True
        assert env.step(Do(what="on")).observation.text == "on"


@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_a_misfit_among_answers_that_come_apart_is_one_sessions_error(server: Running, wire: Any) -> None:
    with OddEnv.vector(server.url, 3, wire=wire) as envs:
        envs.reset()
        outcomes = dict(envs.as_completed({0: Do(what="a"), 1: Do(what="misfit"), 2: Do(what="c")}))
        assert isinstance(outcomes[1], ProtocolError)
        assert [outcomes[place].observation.text for place in (0, 2)] == ["a", "c"]  # type: ignore[union-attr]
        assert envs.step([Do(what="on")] * 3).rewards == [1.0] * 3


@pytest.mark.parametrize(("wire", "what"), [("json", "misfit"), ("msgpack", "misfit"), ("json", "endless")])
def test_a_misfit_among_answers_that_come_together_is_one_sessions_error(
    server: Running, wire: Any, what: str
) -> None:
    with OddEnv.vector(server.url, 3, wire=wire) as envs:
        envs.reset()
        result = envs.step([Do(what="a"), Do(what=what), Do(what="c")])
        assert [seen and seen.text for seen in result.observations] == ["a", None, "c"]
        assert result.ok == [True, False, True]
        assert result.column("size") == [1.0, None, 1.0]
        again = envs.step([Do(what="a"), Do(what=what), Do(what="c")])
        with pytest.raises(ProtocolError):
            again[1]
        assert again[2].observation.text == "c"


def test_infinite_numbers_travel_in_messagepack(server: Running) -> None:
    with OddEnv.vector(server.url, 2, wire="msgpack") as envs:
        envs.reset()
        assert envs.step([Do(what="endless"), Do()]).column("size") == [math.inf, 1.0]


def test_a_text_is_no_list_of_seeds(server: Running) -> None:
    seed: Any = "123"
    with OddEnv.vector(server.url, 3) as envs, pytest.raises(InvalidAction, match="whole number"):
        envs.reset(seed=seed)


class Unmade(Threaded):
    def __init__(self) -> None:
        raise CapacityReached("of another server")


@pytest.mark.parametrize("isolation", [None, "process"])
def test_what_a_constructor_raises_is_the_factorys_failure(isolation: Any) -> None:
    with (
        running(create_app(Unmade, isolation=isolation)) as server,
        pytest.raises(FactoryFailed) as failed,
        OddEnv(server.url, wait_s=0) as env,
    ):
        env.reset()
    assert failed.value.details["reason"] == "of another server"
