"""Environments that step together: what they answer is what each of them would have answered alone."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envtorch import Action, Actions, EnvClient, Environment, Observation, State, create_app
from envtorch.client.blocking.vector import VectorEnv
from envtorch.errors import EnvironmentFailed, InvalidAction
from envtorch.protocol.formats import JSON, MSGPACK, Format
from tests.faults.proxy import Break, Direction, Fault, proxy_to
from tests.server.test_extended import extended
from tests.support import Running, running

COUNT = 5


class Push(Action):
    force: float
    steps: int = 1
    word: str = ""


class Seen(Observation):
    position: float = 0.0
    trail: Any = None
    word: str = "none"


class Cart(Environment[Push, Seen, State]):
    """A cart that is pushed; its own arithmetic is on arrays, of one or of many."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_RESET = False  # most of these tests step at once
    BLOCKING = False
    calls: ClassVar[list[int]] = []
    """How many environments each call of `step_many` was for."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.count = np.float64(0), 0

    def reset(self, seed: int | None = None, start: float = 0.0) -> Seen:
        self.position, self.count = np.float64(start), 0
        return Seen(position=start)

    def step(self, action: Push) -> Seen:
        if action.word == "fail":
            raise RuntimeError("derailed")
        self.position += action.force * action.steps
        self.count += 1
        return Seen(
            position=float(self.position),
            trail=np.array([self.position, self.count]),
            word=action.word,
            reward=float("nan") if action.word == "odd" else -abs(float(self.position)),
            terminated=bool(self.position > 10),
            truncated=self.count > 100,
            metadata={"count": self.count} if self.count % 2 else {},
        )

    @classmethod
    def step_many(cls, environments: Sequence["Cart"], actions: Actions[Push]) -> Any:
        cls.calls.append(len(environments))
        words = actions.column("word")
        if "fail" in words:
            raise RuntimeError("derailed")
        if "short" in words:
            return {"position": [0.0]}
        if "few" in words:
            return []
        moved = np.asarray(actions.column("force")) * np.asarray(actions.column("steps"))
        positions = np.array([environment.position for environment in environments]) + moved
        for environment, position in zip(environments, positions, strict=True):
            environment.position = position
            environment.count += 1
        counts = [environment.count for environment in environments]
        return {
            "position": positions,
            "trail": np.column_stack([positions, counts]),
            "word": words,
            "reward": np.where(np.asarray(words) == "odd", np.nan, -abs(positions)),
            "terminated": positions > 10,
            "truncated": [count > 100 for count in counts],
            "metadata": [{"count": count} if count % 2 else {} for count in counts],
        }

    @property
    def state(self) -> State:
        return State(step_count=self.count)


class CartOfRows(Cart):
    """Gives observations, and not their columns."""

    @classmethod
    def step_many(cls, environments: Sequence[Cart], actions: Actions[Push]) -> Any:
        cls.calls.append(len(environments))
        return [one.step(action) for one, action in zip(environments, actions, strict=True)]


class AwaitedCart(Cart):
    """Is awaited alone, and stepped with others all the same."""

    BLOCKING = True

    async def reset_async(self, seed: int | None = None, start: float = 0.0) -> Seen:
        return self.reset(seed, start)

    async def step_async(self, action: Push) -> Seen:
        await asyncio.sleep(0.1 if action.word == "slow" else 0)
        return self.step(action)


class CartOnThread(Cart):
    BLOCKING = True


class CartAlone(Cart):
    """Means something else by that name."""

    def step_many(self, times: int) -> int:  # type: ignore[override]
        return times


class CartEnv(EnvClient[Push, Seen, State]): ...


Vector = VectorEnv[Push, Seen, State]
Wire = Literal["json", "msgpack"]


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


def told(result: Any) -> list[Any]:
    """All that a result says of each session."""
    return [
        (
            one.observation.model_dump(exclude={"trail"}),
            None if one.observation.trail is None else np.asarray(one.observation.trail).tolist(),
            (one.reward, one.done, one.terminated, one.truncated, one.metadata),
        )
        for one in result
    ]


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


def test_sessions_stay_sessions(server: Running) -> None:
    """One of them is reset, stepped alone and ends; the others go on together."""
    steps: Callable[[int, list[int]], dict[str, Any]] = lambda id, ch: {  # noqa: E731
        "type": "steps",
        "id": id,
        "ch": 9,
        "data": {"ch": ch, "columns": {"force": [1.0] * len(ch)}},
    }
    with extended(server) as wire:
        supports = [wire.open(ch)["supports"] for ch in range(3)]
        assert all("together" in told for told in supports)
        for id in (1, 2):
            data = wire.ask(**steps(id, [0, 1, 2]))["data"]
        assert data["ch"] == [0, 1, 2]
        wire.ask(type="reset", id=3, ch=1, data={"start": 4.0})
        alone = wire.ask(type="step", id=4, ch=1, data={"force": 1.0})["data"]
        assert (alone["observation"]["position"], alone["reward"]) == (5.0, -5.0)
        states = [wire.ask(type="state", id=5 + ch, ch=ch)["data"]["step_count"] for ch in range(3)]
        assert states == [2, 1, 2]
        copy = wire.ask(type="fork", id=9, ch=2, data={"n": 1})["data"]["sessions"][0]
        wire.ask(type="attach", id=10, ch=7, data={"token": copy["token"]})
        wire.close(1)
        wire.ask(**steps(5001, [0, 2, 7]))
        state = wire.ask(type="state", id=5002, ch=7)["data"]
        assert state["step_count"] == 3
        for ch in (0, 2, 7):
            wire.ask(type="close", id=6000, ch=ch)
    assert Cart.calls[-1] == 3


def test_a_channel_is_named_once_in_a_message(server: Running) -> None:
    with extended(server) as wire:
        wire.open(0)
        wire.ask(type="reset", id=1, ch=0, data={})
        for ch in ([0, 0], list(range(20_000))):
            told = wire.ask(
                type="steps", id=2 + len(ch), ch=9, data={"ch": ch, "columns": {"force": [1.0] * len(ch)}}
            )
            assert (told["type"], told["data"]["code"]) == ("error", "PROTOCOL_ERROR")
        assert wire.ask(type="state", id=50_000, ch=0)["data"]["step_count"] == 0


def test_a_channel_that_changed_hands_leads_to_its_new_session(server: Running) -> None:
    """However often the same channels were asked together before."""
    both = {"ch": [0, 1], "columns": {"force": [1.0, 1.0]}}
    with extended(server) as wire, extended(server) as other:
        wire.open(0)
        first = wire.open(1)
        for id in (1, 2):
            wire.ask(type="steps", id=id, ch=9, data=both)
        other.ask(type="attach", id=3, ch=0, data={"token": first["token"]})
        refused = {one["ch"]: one for one in both_answers(wire, id=3, data=both)}
        assert refused[1]["data"]["code"] == "SESSION_ERROR", "it is no longer here"
        wire.ask(type="session", id=4, ch=1)
        wire.ask(type="steps", id=5, ch=9, data=both)
        steps = [wire.ask(type="state", id=6 + ch, ch=ch)["data"]["step_count"] for ch in (0, 1)]
        assert steps == [4, 1]
        assert other.ask(type="state", id=6, ch=0)["data"]["step_count"] == 2
        for ch in (0, 1):
            wire.close(ch)
        other.close(0)


def both_answers(wire: Any, *, id: int, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of two sessions that are not answered together."""
    wire.say({"type": "steps", "id": id, "ch": 9, "data": data})
    heard: list[dict[str, Any]] = []
    while len(heard) < 2:
        heard += [{"ch": 0} | one for one in wire.hear()]
    return heard


@pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
def test_a_repeated_id_gets_each_sessions_share(server: Running, format: Format) -> None:
    with extended(server, format) as wire:
        tokens = [wire.open(ch)["token"] for ch in range(2)]
        asked = {"ch": [0, 1], "columns": {"force": [1.0, 2.0]}}
        wire.ask(type="steps", id=1, ch=9, data=asked)
        first = {ch: wire.ask(type="step", id=1, ch=ch, data={"force": 9.0})["data"] for ch in (0, 1)}
        assert [first[ch]["observation"]["position"] for ch in (0, 1)] == [1.0, 2.0]
        assert first[1]["reward"] == -2.0
        with extended(server, format) as other:  # under other channel numbers, too
            for ch, token in enumerate(reversed(tokens)):
                other.ask(type="attach", id=50, ch=ch, data={"token": token})
            share = other.ask(type="step", id=1, ch=0, data={"force": 9.0})["data"]
            assert share["observation"]["position"] == 2.0
            again = other.ask(type="step", id=2, ch=0, data={"force": 1.0})["data"]
            alone = again["observation"].keys(), again.keys()
            assert (share["observation"].keys(), share.keys() - {"metadata"}) == (
                alone[0],
                alone[1] - {"metadata"},
            )
            for ch in (0, 1):
                other.close(ch)


def test_a_failure_is_kept_like_any_answer(server: Running) -> None:
    with extended(server) as wire:
        wire.open(0)
        asked = {"ch": [0], "columns": {"force": [1.0], "word": ["fail"]}}
        first = wire.ask(type="steps", id=1, ch=9, data=asked)["data"]
        assert first["code"] == "EXECUTION_ERROR"
        calls = len(Cart.calls)
        assert wire.ask(type="step", id=1, ch=0, data={"force": 1.0})["data"] == first
        assert len(Cart.calls) == calls
        wire.close(0)


@pytest.mark.parametrize(
    "data", [{"columns": {"force": [1.0]}}, {"columns": {"force": 1}}, {"columns": [1]}, {}]
)
def test_columns_that_are_none_are_refused_as_a_whole(server: Running, data: dict[str, Any]) -> None:
    with extended(server) as wire:
        for ch in range(2):
            wire.open(ch)
        refused = wire.ask(type="steps", id=1, ch=9, data={"ch": [0, 1], **data})["data"]
        assert refused["code"] == "VALIDATION_ERROR"
        for ch in range(2):
            wire.close(ch)


@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_a_broken_line_loses_no_step_and_doubles_none(server: Running, wire: Wire) -> None:
    def play(port: int) -> list[float]:
        with CartEnv.vector(f"http://127.0.0.1:{port}", 4, wire=wire) as envs:
            envs.reset(start=-100.0)
            for _ in range(6):
                result = envs.step({"force": [1.0] * 4})
            return list(result.column("position"))

    async def disturbed(planned: Break | None) -> tuple[list[float], int, dict[Direction, int]]:
        async with proxy_to(int(server.url.rsplit(":", 1)[1]), planned) as proxy:
            return await asyncio.to_thread(play, proxy.port), proxy.faults, dict(proxy.forwarded)

    _, _, lengths = asyncio.run(disturbed(None))
    happened = 0
    for direction, length in lengths.items():
        for at in range(400, length, length // 6):
            positions, faults, _ = asyncio.run(disturbed(Break(Fault.CUT, direction, at)))
            assert positions == [-94.0] * 4
            happened += faults
    assert happened >= 6


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
