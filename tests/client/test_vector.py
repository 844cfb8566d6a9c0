"""Many sessions over one socket: what a vector promises, however its environments are called."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from envtorch import Action, EnvClient, Environment, Observation, State, StepResult, create_app
from envtorch.client.blocking.vector import VectorEnv
from envtorch.client.vector_actions import HALF
from envtorch.errors import (
    CapacityReached,
    ConfigurationError,
    EnvironmentFailed,
    InvalidAction,
    SessionLost,
    TimedOut,
)
from tests.faults.proxy import Break, Direction, Fault, proxy_to
from tests.support import PATIENCE_S, Running, eventually, running

COUNT = 8


class Move(Action):
    by: int = 1
    do: str = ""


class Seen(Observation):
    position: int = 0
    picture: Any = None


class Line(Environment[Move, Seen, State]):
    """Walks on a line; an episode ends at five."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._position = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, start: int = 0) -> Seen:
        self._state = State(episode_id=f"seed {seed}")
        self._position = start
        return self._see()

    def step(self, action: Move, timeout_s: float | None = None) -> Seen:
        if action.do == "fail":
            raise RuntimeError("stumbled")
        if action.do == "unencodable":
            return Seen(picture=object())
        self._state.step_count += 1
        self._position += action.by
        return self._see()

    def _see(self) -> Seen:
        picture = np.full((2, 3), self._position, dtype=np.int16)
        done = self._position >= 5
        return Seen(position=self._position, reward=float(self._position), done=done, picture=picture)

    @property
    def state(self) -> State:
        return self._state


class QuickLine(Line):
    BLOCKING = False


class AwaitedLine(Line):
    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, start: int = 0
    ) -> Seen:
        return self.reset(seed, episode_id, start)

    async def step_async(self, action: Move, timeout_s: float | None = None) -> Seen:
        await asyncio.sleep(0)
        return self.step(action)


class LineEnv(EnvClient[Move, Seen, State]):
    pass


@pytest.fixture(scope="module", params=[Line, QuickLine, AwaitedLine])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(create_app(request.param, max_concurrent_envs=2 * COUNT)) as running_server:
        yield running_server


@pytest.fixture(params=["json", "msgpack"])
def envs(request: pytest.FixtureRequest, server: Running) -> Iterator[VectorEnv[Move, Seen, State]]:
    with LineEnv.vector(server.url, COUNT, wire=request.param) as vector:
        yield vector
    eventually(lambda: server.sessions.active == 0, "every slot is free")


Vector = VectorEnv[Move, Seen, State]


def test_every_session_has_its_own_seed_action_and_episode(envs: Vector) -> None:
    begun = envs.reset(seed=40)
    assert [one.position for one in begun.observations] == [0] * COUNT
    result = envs.step([Move(by=place) for place in range(COUNT)])
    assert [one.position for one in result.observations] == list(range(COUNT))
    assert list(result.rewards) == [float(place) for place in range(COUNT)]
    assert result.dones == [place >= 5 for place in range(COUNT)]
    assert result.terminated == result.dones
    assert result[3].observation.reward == 3.0, (
        "the observation has its reward, as with a client of one session"
    )
    states = envs.state()
    assert [state.episode_id for state in states] == [f"seed {40 + place}" for place in range(COUNT)]
    assert [state.step_count for state in states] == [1] * COUNT


def test_a_vector_gives_what_single_clients_give(envs: Vector, server: Running) -> None:
    envs.reset(seed=1, start=2)
    together = envs.step([Move()] * COUNT)
    with LineEnv(server.url) as env:
        env.reset(seed=1, start=2)
        alone = env.step(Move())
    one = together[0]
    np.testing.assert_array_equal(np.asarray(one.observation.picture), np.asarray(alone.observation.picture))
    assert (one.observation.position, one.reward, one.done) == (
        alone.observation.position,
        alone.reward,
        alone.done,
    )


def test_arrays_arrive_as_one_array(envs: Vector) -> None:
    envs.reset()
    pictures = envs.step([Move(by=place) for place in range(COUNT)]).array("picture")
    assert pictures.shape == (COUNT, 2, 3)
    assert pictures[:, 0, 0].tolist() == list(range(COUNT))


def test_the_failure_of_one_does_not_lose_the_others(envs: Vector) -> None:
    envs.reset()
    for do in ("fail", "unencodable"):
        result = envs.step([Move(do=do if place == 2 else "") for place in range(COUNT)])
        assert list(result.errors) == [2]
        with pytest.raises(EnvironmentFailed):
            result[2]
        assert list(result.observations)[2:3] == [None]
        assert all(result[place].observation.position > 0 for place in range(COUNT) if place != 2)
    assert envs.step([Move()] * COUNT).errors == {}, "and the one that failed goes on"


class Told(Observation):
    """Nothing but plain values."""

    position: int = 0
    word: str | None = None


class Teller(Environment[Move, Told, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    BLOCKING = False

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None) -> Told:
        self._state = State()
        return Told(position=seed or 0)

    def step(self, action: Move) -> Told:
        self._state.step_count += 1
        if action.do == "fail":
            raise RuntimeError("stumbled")
        metadata = {"by": action.by} if action.do == "note" else {}
        position = self._state.step_count * action.by
        if action.do == "unsayable":
            return Told(position=2**70, word="\ud800")
        return Told(position=position, word=action.do or None, reward=action.by, metadata=metadata)

    @property
    def state(self) -> State:
        return self._state


class TellerEnv(EnvClient[Move, Told, State]):
    pass


@pytest.mark.parametrize("wire", ["json", "msgpack"])
@pytest.mark.parametrize("do", ["", "note", "fail", "unsayable"])
def test_plain_observations_are_those_of_single_clients(wire: Any, do: str) -> None:
    with (
        running(create_app(Teller, max_concurrent_envs=COUNT + 1)) as server,
        TellerEnv.vector(server.url, COUNT, wire=wire) as envs,
        TellerEnv(server.url, wire=wire) as alone,
    ):
        envs.reset(seed=1)
        alone.reset(seed=1)
        for number in range(3):
            moves = [Move(by=number + place) for place in range(COUNT)]
            result, one = envs.step(moves), alone.step(moves[2])
            assert result[2] == one
            assert result[2].observation.model_fields_set <= set(Told.model_fields)
            assert result.column("position") == [(number + 1) * move.by for move in moves]
        result = envs.step([Move(by=place, do=do if place == 3 else "") for place in range(COUNT)])
        if do in ("fail", "unsayable"):
            assert list(result.errors) == [3]
            assert isinstance(result.errors[3], EnvironmentFailed)
        elif do == "note":
            assert result[3].metadata == {"by": 3} == result.observations[3].metadata
        assert [result[place].observation.position for place in range(COUNT) if place != 3] == [
            4 * place for place in range(COUNT) if place != 3
        ]
        assert [state.step_count for state in envs.state()] == [4] * COUNT


def test_a_reset_of_no_session_is_nothing(server: Running) -> None:
    with LineEnv.vector(server.url, 2) as envs:
        envs.reset()
        assert envs.reset({}) == {}
        assert envs.state()[0].step_count == 0


def test_an_invalid_action_is_its_own_sessions_business(server: Running) -> None:
    class Dicts(EnvClient[dict[str, Any], dict[str, Any], dict[str, Any]]):
        pass

    with Dicts.vector(server.url, 3) as envs:
        envs.reset()
        result = envs.step([{"by": 1}, {"by": "far"}, {"by": 2}])
        assert isinstance(result.errors[1], InvalidAction)
        assert (result[0].observation["position"], result[2].observation["position"]) == (1, 2)


class TestHalves:
    """A wide vector sends a step as two halves: nobody notices."""

    WIDE = 2 * HALF + 3

    @pytest.fixture
    def wide(self) -> Iterator[Vector]:
        with (
            running(create_app(QuickLine, max_concurrent_envs=self.WIDE)) as server,
            LineEnv.vector(server.url, self.WIDE) as envs,
        ):
            envs.reset(start=-100)
            yield envs

    def test_are_put_together_in_order(self, wide: Vector) -> None:
        for _ in range(2):  # the second time, what is looked at is read ahead
            result = wide.step([Move(by=place) for place in range(self.WIDE)])
            positions = [one.position for one in result.observations]
        assert positions == [-100 + 2 * place for place in range(self.WIDE)]
        assert result.rewards == [float(position) for position in positions]
        assert result.dones == [position >= 5 for position in positions]
        assert result.array("picture").shape == (self.WIDE, 2, 3)
        assert [state.step_count for state in wide.state()] == [2] * self.WIDE

    def test_one_that_fails_in_either_is_the_only_one(self, wide: Vector) -> None:
        for place in (1, self.WIDE - 1):
            result = wide.step([Move(do="fail" if at == place else "") for at in range(self.WIDE)])
            assert list(result.errors) == [place]
            assert sum(one is not None for one in result.observations) == self.WIDE - 1

    def test_an_action_that_cannot_be_sent_fails_its_own_session_only(self, wide: Vector) -> None:
        odd = Move()
        odd.metadata["odd"] = object()
        result = wide.step([Move()] * (self.WIDE - 1) + [odd])
        assert list(result.errors) == [self.WIDE - 1]
        assert isinstance(result.errors[self.WIDE - 1], InvalidAction)
        assert [state.step_count for state in wide.state()] == [1] * (self.WIDE - 1) + [0]


class TestEndsOfEpisodes:
    def test_are_left_alone(self, server: Running) -> None:
        with LineEnv.vector(server.url, 2) as envs:
            envs.reset()
            envs.step([Move(by=5), Move(by=1)])
            result = envs.step([Move(by=1), Move(by=1)])
        assert [one.position for one in result.observations] == [6, 2]

    def test_begin_anew_with_the_next_step(self, server: Running) -> None:
        with LineEnv.vector(server.url, 2, autoreset="next_step") as envs:
            envs.reset(start=1)
            assert envs.step([Move(by=4), Move(by=1)]).dones == [True, False]
            result = envs.step([Move(by=1), Move(by=1)])
            assert [one.position for one in result.observations] == [1, 3]
            assert result.dones == [False, False]
            assert [one.position for one in envs.step([Move(), Move()]).observations] == [2, 4]

    def test_begin_anew_in_the_same_step(self, server: Running) -> None:
        with LineEnv.vector(server.url, 2, autoreset="same_step") as envs:
            envs.reset(start=1)
            result = envs.step([Move(by=4), Move(by=1)])
            assert result.dones == [True, False]
            assert [one.position for one in result.observations] == [1, 2]
            assert result.final[0].observation.position == 5
            assert list(result.final) == [0]
            assert list(result.rewards) == [5.0, 2.0], "the reward is that of the step that ended it"


def test_sessions_answer_at_their_own_speed(server: Running) -> None:
    with LineEnv.vector(server.url, 3) as envs:
        envs.reset()
        envs.send({0: Move(), 2: Move(by=2)})
        with pytest.raises(InvalidAction, match="session 0"):
            envs.send({0: Move()})
        came: dict[int, Any] = {}
        while len(came) < 2:
            came |= envs.receive()
        assert {place: result.observation.position for place, result in came.items()} == {0: 1, 2: 2}
        envs.send({1: Move(by=3)})
        came = dict(envs.receive())
        assert came[1].observation.position == 3


def test_a_client_that_parses_its_own_way_has_the_last_word(server: Running) -> None:
    class Shouting(EnvClient[Move, Any, State]):
        def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
            assert payload.keys() == {"observation", "reward", "done"}, "as in a reply to one"
            return StepResult(f"{payload['observation']['position']}!", payload["reward"], payload["done"])

    for wire in ("json", "msgpack"):
        with Shouting.vector(server.url, 2, wire=wire) as envs:
            envs.reset()
            assert envs.step([Move(by=1), Move(by=2)]).observations == ["1!", "2!"]
            envs.send({1: Move(by=3)})
            (came,) = envs.receive().values()
            assert isinstance(came, StepResult)
            assert (came.observation, came.reward, came.done) == ("5!", 5.0, True)


def test_bad_use_is_told(server: Running) -> None:
    with pytest.raises(ConfigurationError, match="one session or more"):
        LineEnv.vector(server.url, 0)
    with pytest.raises(ConfigurationError, match="autoreset"):
        LineEnv.vector(server.url, 1, autoreset="sometimes")  # type: ignore[arg-type]
    with pytest.raises(CapacityReached):
        LineEnv.vector(server.url, 2 * COUNT + 1)
    eventually(lambda: server.sessions.active == 0, "what was opened is let go", PATIENCE_S)
    with LineEnv.vector(server.url, 2) as envs:
        with pytest.raises(InvalidAction, match="takes as many actions"):
            envs.step([Move()])
        with pytest.raises(InvalidAction, match="nothing was sent"):
            envs.step_wait()


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET])
@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_a_broken_line_loses_no_step_and_doubles_none(server: Running, fault: Fault, wire: Any) -> None:
    def play(port: int) -> list[int]:
        with LineEnv.vector(f"http://127.0.0.1:{port}", 4, wire=wire) as envs:
            envs.reset(start=-100)
            for _ in range(6):
                positions = [one.position for one in envs.step([Move()] * 4).observations]
        return positions

    async def disturbed(planned: Break | None) -> tuple[list[int], int, dict[Direction, int]]:
        async with proxy_to(int(server.url.rsplit(":", 1)[1]), planned) as proxy:
            return await asyncio.to_thread(play, proxy.port), proxy.faults, dict(proxy.forwarded)

    _, _, lengths = asyncio.run(disturbed(None))
    happened = 0
    for direction, length in lengths.items():
        for at in range(400, length, length // 5):
            positions, faults, _ = asyncio.run(disturbed(Break(fault, direction, at)))
            assert positions == [-94] * 4
            happened += faults
    assert happened >= 6


def test_a_lost_server_is_lost_for_all(server: Running) -> None:
    with running(create_app(QuickLine, max_concurrent_envs=4)) as dying:
        envs = LineEnv.vector(dying.url, 4, reconnect_s=0.3)
        envs.reset()
    with pytest.raises((SessionLost, TimedOut)):
        envs.step([Move()] * 4)
    envs.close()
