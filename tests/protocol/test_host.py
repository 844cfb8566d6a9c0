"""An environment behind its codec, driven by hand in both colours."""

import asyncio
import json
from typing import Any

import pytest

from envtorch import Environment, EnvSpec, Observation, State
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.envs.echo_env.models import EchoAction, EchoObservation
from envtorch.errors import EnvironmentFailed, InvalidAction, OutOfResources, Unsupported
from envtorch.protocol.binding import Colour, Method
from envtorch.protocol.calls import Call
from envtorch.protocol.codec import Codec
from envtorch.protocol.flow import Flow, drive, drive_async, settle
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.messages import decode

STEP = Call.step(b'{"message":"x"}')


def host_of(environment: Environment[Any, Any, Any]) -> EnvironmentHost:
    return EnvironmentHost(environment, Codec(EnvSpec(EchoAction, EchoObservation, State)), has_begun=True)


def run(flow: Flow[Any]) -> Any:
    return drive(flow, lambda value: value)


class Programmable(EchoEnvironment):
    """Does what its test tells it to."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self._act = act

    def step(self, action: EchoAction) -> EchoObservation:
        observation: EchoObservation = self._act(action)
        return observation


def test_an_episode_by_hand() -> None:
    host = host_of(EchoEnvironment())
    reset = run(host.reply(decode('{"type":"reset","data":{"episode_id":"e"}}'), strict=True))  # type: ignore[arg-type]
    assert json.loads(reset.data)["observation"]["echoed_message"] == "Echo environment ready!"
    step = run(host.reply(decode('{"type":"step","data":{"message":"Hello, World!"}}'), strict=True))  # type: ignore[arg-type]
    assert json.loads(step.data)["reward"] == 1.3
    state = run(host.reply(decode('{"type":"state"}'), strict=True))  # type: ignore[arg-type]
    assert json.loads(state.data) == {"episode_id": "e", "step_count": 1}


class TestWhatAnEnvironmentRaises:
    @pytest.mark.parametrize(
        ("raised", "message"),
        [(RuntimeError("kaboom"), "kaboom"), (ValueError(), "ValueError()"), (SystemExit(3), "3")],
        ids=repr,
    )
    def test_is_reported_as_its_failure(self, raised: BaseException, message: str) -> None:
        def act(_: EchoAction) -> EchoObservation:
            raise raised

        with pytest.raises(EnvironmentFailed) as caught:
            run(host_of(Programmable(act)).step(STEP))
        assert caught.value.message == message
        assert caught.value.__cause__ is raised
        assert caught.value.details["exception"] == type(raised).__name__

    def test_is_out_of_resources_when_memory_is_gone(self) -> None:
        def act(_: EchoAction) -> EchoObservation:
            raise MemoryError

        with pytest.raises(OutOfResources, match="step ran out of memory"):
            run(host_of(Programmable(act)).step(STEP))

    def test_is_not_touched_when_it_is_ours(self) -> None:
        def act(_: EchoAction) -> EchoObservation:
            raise InvalidAction("that move is not legal")

        with pytest.raises(InvalidAction, match="not legal"):
            run(host_of(Programmable(act)).step(STEP))


class TestKeywords:
    class Picky(EchoEnvironment):
        def reset(self, difficulty: int = 0) -> EchoObservation:  # type: ignore[override]
            return EchoObservation(message_length=difficulty)

    def test_unknown_ones_are_dropped_on_openenvs_wire(self) -> None:
        encoded = run(host_of(self.Picky()).reset(Call.reset({"difficulty": 3, "seed": 1})))
        assert json.loads(encoded.observation)["message_length"] == 3

    def test_unknown_ones_are_named_on_ours(self) -> None:
        with pytest.raises(InvalidAction, match="reset does not take 'sead'; it takes difficulty"):
            run(host_of(self.Picky()).reset(Call.reset({"sead": 1}, strict=True)))

    def test_an_environment_may_take_them_all(self) -> None:
        class Greedy(EchoEnvironment):
            def reset(self, **options: Any) -> EchoObservation:  # type: ignore[override]
                return EchoObservation(message_length=len(options))

        encoded = run(host_of(Greedy()).reset(Call.reset({"a": 1, "b": 2}, strict=True)))
        assert json.loads(encoded.observation)["message_length"] == 2

    def test_step_keywords_exclude_the_action_itself(self) -> None:
        assert Method.of(EchoEnvironment(), "step").keywords == {}


class AsyncEcho(EchoEnvironment):
    async def reset(self, seed: int | None = None, episode_id: str | None = None) -> EchoObservation:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reset(seed, episode_id)

    async def step(self, action: EchoAction) -> EchoObservation:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(action)


class SpelledOut(EchoEnvironment):
    async def step_async(self, action: EchoAction) -> EchoObservation:
        await asyncio.sleep(0)
        return EchoObservation(echoed_message="async " + action.message)


class TestColours:
    def test_are_told_apart(self) -> None:
        assert host_of(EchoEnvironment()).colour is Colour.SYNC
        assert host_of(AsyncEcho()).colour is Colour.ASYNC
        assert host_of(SpelledOut()).colour is Colour.MIXED

    def test_the_async_spelling_is_preferred(self) -> None:
        flow = host_of(SpelledOut()).step(STEP)
        encoded = asyncio.run(drive_async(flow, settle))
        assert json.loads(encoded.observation)["echoed_message"] == "async x"

    def test_both_colours_give_the_same(self) -> None:
        action = Call.step(b'{"message":"same"}')
        one = run(host_of(EchoEnvironment()).step(action))
        two = asyncio.run(drive_async(host_of(AsyncEcho()).step(action), settle))
        assert one == two

    def test_what_an_awaited_call_raises_is_blamed_too(self) -> None:
        class Failing(AsyncEcho):
            async def step(self, action: EchoAction) -> EchoObservation:  # type: ignore[override]
                await asyncio.sleep(0)
                raise RuntimeError("later")

        flow = host_of(Failing()).step(STEP)
        with pytest.raises(EnvironmentFailed, match="later"):
            asyncio.run(drive_async(flow, settle))


def test_a_state_written_as_a_method_is_understood() -> None:
    class Forgetful(EchoEnvironment):
        def state(self) -> State:  # type: ignore[override]
            return State(step_count=5)

    assert json.loads(run(host_of(Forgetful()).state(Call("state"))))["step_count"] == 5


def test_an_environment_without_tasks_says_so() -> None:
    with pytest.raises(Unsupported, match="list_splits is not supported for this environment"):
        run(host_of(EchoEnvironment()).tasks(Call.with_arguments("tasks", "list_splits")))


def test_a_plain_observation_without_metadata_will_do() -> None:
    flow = host_of(Programmable(lambda action: Observation())).step(STEP)
    assert json.loads(run(flow).observation) == {"metadata": {}}
