"""Environments that step together: what they answer is what each of them would have answered alone."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envtorch import Actions, create_app
from envtorch.errors import EnvironmentFailed, InvalidAction
from tests.server.carts import (
    COUNT,
    AwaitedCart,
    Cart,
    CartAlone,
    CartEnv,
    CartOfRows,
    CartOnThread,
    Push,
    Seen,
    Vector,
    Wire,
    told,
)
from tests.server.test_extended import extended
from tests.support import Running, running


@pytest.fixture(autouse=True)
def no_calls() -> None:
    Cart.calls.clear()


@pytest.fixture(scope="module", params=[Cart, CartOfRows, AwaitedCart])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(create_app(request.param, max_concurrent_envs=4 * COUNT)) as running_server:
        yield running_server


@pytest.fixture(params=["json", "msgpack"])
def envs(request: pytest.FixtureRequest, server: Running) -> Iterator[Vector]:
    with CartEnv.vector(server.url, COUNT, wire=request.param) as vector:
        vector.reset()
        yield vector


pushes = st.builds(
    Push, force=st.floats(-3, 6, width=16), steps=st.integers(0, 3), word=st.sampled_from(["", "a", "b"])
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(pushes, min_size=COUNT, max_size=COUNT), min_size=1, max_size=4),
    st.sampled_from(["json", "msgpack"]),
    st.booleans(),
)
def test_together_is_as_alone(
    server: Running, rounds: list[list[Push]], wire: Wire, as_columns: bool
) -> None:
    with CartEnv.vector(server.url, COUNT, wire=wire) as envs:
        envs.reset()
        together = []
        for actions in rounds:
            columns = {name: [getattr(one, name) for one in actions] for name in ("force", "steps", "word")}
            together.append(told(envs.step(columns if as_columns else actions)))
        counts = [state.step_count for state in envs.state()]
    assert Cart.calls[-len(rounds) :] == [COUNT] * len(rounds)
    for place in range(COUNT):
        with CartEnv(server.url, wire=wire) as env:
            env.reset()
            alone = [told([env.step(actions[place])])[0] for actions in rounds]
        assert [answers[place] for answers in together] == alone
    assert counts == [len(rounds)] * COUNT


class TestColumns:
    def test_in_and_out_touch_no_object(self, envs: Vector) -> None:
        forces = np.arange(COUNT, dtype=float)
        result = envs.step({"force": forces, "word": ["x"] * COUNT})
        assert np.array_equal(result.array("position"), forces)
        assert result.array("trail").shape == (COUNT, 2)
        assert result.column("word") == ["x"] * COUNT
        assert result.rewards == (-forces).tolist()
        assert Cart.calls == [COUNT]

    def test_arrays_are_views_of_the_frame(self) -> None:
        with (
            running(create_app(Cart, max_concurrent_envs=COUNT)) as server,
            CartEnv.vector(server.url, COUNT, wire="msgpack") as envs,
        ):
            envs.reset()
            trail = envs.step({"force": np.ones(COUNT)}).array("trail")
        assert not trail.flags.owndata

    def test_of_a_class_without_step_many_are_stepped_one_by_one(self) -> None:
        for kind in (CartAlone, CartOnThread):
            with (
                running(create_app(kind, max_concurrent_envs=COUNT)) as server,
                CartEnv.vector(server.url, COUNT) as envs,
            ):
                envs.reset()
                result = envs.step({"force": list(range(COUNT))})
                assert [one.position for one in result.observations] == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert Cart.calls == []

    def test_bad_ones_are_told(self, envs: Vector) -> None:
        with pytest.raises(InvalidAction, match="takes as many actions, not 2 of 'force'"):
            envs.step({"force": [1.0, 2.0]})
        with pytest.raises(InvalidAction, match="'word' is one str"):
            envs.step({"force": [1.0] * COUNT, "word": "five!"})
        result = envs.step({"force": [1.0] * COUNT, "height": [1] * COUNT})
        assert all(isinstance(result.errors[place], InvalidAction) for place in range(COUNT))

    def test_one_invalid_action_is_its_own_sessions_business(self, envs: Vector) -> None:
        result = envs.step({"force": [1.0, "far", 1.0, 1.0, 1.0]})
        assert list(result.errors) == [1]
        assert isinstance(result.errors[1], InvalidAction)
        assert [result[place].observation.position for place in (0, 2, 3, 4)] == [1.0] * 4
        assert Cart.calls == [], "what cannot be read together is not stepped together"


class TestFailures:
    @pytest.mark.parametrize(
        ("word", "why"), [("fail", "derailed"), ("short", "column 'position'"), ("few", "0")]
    )
    def test_of_the_call_are_everybodys(self, word: str, why: str) -> None:
        with (
            running(create_app(Cart, max_concurrent_envs=COUNT)) as server,
            CartEnv.vector(server.url, COUNT) as envs,
        ):
            envs.reset()
            result = envs.step([Push(force=1, word=word)] + [Push(force=1)] * (COUNT - 1))
            assert list(result.errors) == list(range(COUNT))
            for error in result.errors.values():
                assert isinstance(error, EnvironmentFailed)
                assert why in str(error)
            assert len({error.details["error_id"] for error in result.errors.values()}) == 1, "one failure"
            again = envs.step([Push(force=1)] * COUNT)
            assert again.errors == {}
            assert [one.position for one in again.observations] == [1.0] * COUNT

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ({"position": [0.0] * COUNT, "hight": [0] * COUNT}, "Seen has no field 'hight'"),
            ({"position": ["a"] * COUNT}, "column 'position', value 0"),
            ({"position": 3.0}, "'position' is one float"),
            ({"trail": [object()] * COUNT}, "cannot be sent"),
            (None, "returned NoneType"),
            ("right", "returned str"),
            ([Seen()] * (COUNT - 1), "returned 4 observations for 5"),
        ],
    )
    def test_of_what_it_gives_are_named(self, given: Any, why: str) -> None:
        class Odd(Cart):
            @classmethod
            def step_many(cls, environments: Sequence[Cart], actions: Actions[Push]) -> Any:
                return given

        for wire in ("json", "msgpack"):
            with (
                running(create_app(Odd, max_concurrent_envs=COUNT)) as server,
                CartEnv.vector(server.url, COUNT, wire=wire) as envs,
            ):
                envs.reset()
                result = envs.step([Push(force=1)] * COUNT)
            assert len(result.errors) == COUNT
            assert why in str(result.errors[0])

    def test_a_coroutine_is_not_awaited(self) -> None:
        class Waiting(Cart):
            @classmethod
            async def step_many(cls, environments: Sequence[Cart], actions: Actions[Push]) -> Any:
                raise AssertionError("nobody awaits it")

        with (
            running(create_app(Waiting, max_concurrent_envs=2)) as server,
            CartEnv.vector(server.url, 2) as envs,
        ):
            envs.reset()
            result = envs.step([Push(force=1)] * 2)
        assert "plain classmethod" in str(result.errors[1])

    def test_one_observation_that_cannot_be_sent_is_one_failure(self) -> None:
        class Odd(CartOfRows):
            def step(self, action: Push) -> Seen:
                return Seen(trail=object()) if action.word == "odd" else super().step(action)

        with (
            running(create_app(Odd, max_concurrent_envs=COUNT)) as server,
            CartEnv.vector(server.url, COUNT) as envs,
        ):
            envs.reset()
            result = envs.step([Push(force=1, word="odd")] + [Push(force=1)] * (COUNT - 1))
        assert list(result.errors) == [0]


def test_a_reward_that_is_not_finite_is_the_failure_of_its_own_session(envs: Vector) -> None:
    words = ["", "odd", "", "odd", ""]
    result = envs.step([Push(force=1.0, word=word) for word in words])
    assert Cart.calls == [COUNT]
    assert result.rewards == [-1.0, None, -1.0, None, -1.0]
    for place in (1, 3):
        assert isinstance(result.errors[place], EnvironmentFailed)
        assert "the reward nan" in str(result.errors[place])
    assert envs.step([Push(force=1.0)] * COUNT).rewards == [-2.0] * COUNT, "every step happened once"


def test_a_mixture_of_classes_steps_one_by_one() -> None:
    made: list[Cart] = []

    def make() -> Cart:
        made.append(Cart() if len(made) % 2 else CartOfRows())
        return made[-1]

    with (
        running(create_app(make, Push, Seen, max_concurrent_envs=2)) as server,
        CartEnv.vector(server.url, 2) as envs,
    ):
        envs.reset()
        result = envs.step([Push(force=1), Push(force=2)])
    assert [one.position for one in result.observations] == [1.0, 2.0]


def test_one_that_is_still_awaited_has_its_turn_first() -> None:
    with (
        running(create_app(AwaitedCart, max_concurrent_envs=2)) as server,
        extended(server) as wire,
    ):
        for ch in range(2):
            assert "together" in wire.open(ch)["supports"]
        both = {"ch": [0, 1], "columns": {"force": [2.0, 2.0]}}
        wire.say({"type": "step", "id": 1, "ch": 0, "data": {"force": 1.0, "word": "slow"}})
        wire.say({"type": "steps", "id": 2, "ch": 9, "data": both})
        heard: list[dict[str, Any]] = []
        while len(heard) < 3:
            heard += wire.hear()
        assert [(one["id"], one.get("ch", 0)) for one in heard] == [(2, 1), (1, 0), (2, 0)]
        assert [one["data"]["observation"]["position"] for one in heard] == [2.0, 1.0, 3.0]
        assert not Cart.calls
        wire.ask(type="steps", id=3, ch=9, data={"ch": [0, 1], "columns": {"force": [1.0, 1.0]}})
        assert Cart.calls == [2]


def test_a_new_episode_begins_with_the_next_step_of_columns(server: Running) -> None:
    with CartEnv.vector(server.url, 2, autoreset="next_step") as envs:
        envs.reset(start=2.0)
        assert envs.step({"force": [9.0, 1.0]}).dones == [True, False]
        result = envs.step({"force": [1.0, 1.0]})
        assert [one.position for one in result.observations] == [2.0, 4.0]
