"""Vectors of clients with methods of their own, which may fail, and vectors that several tasks step."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from envtorch import StepResult, create_app
from envtorch.errors import ProtocolError
from tests.faults.counting import Add, Counting, CountingEnv
from tests.support import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Counting, max_concurrent_envs=32)) as running_server:
        yield running_server


class OwnTranslation(CountingEnv):
    """A client whose own methods fail for some values."""

    def _step_payload(self, action: Add) -> dict[str, Any]:
        if action.n == 13:
            raise KeyError("thirteen")
        return super()._step_payload(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
        result = super()._parse_result(payload)
        if result.observation.total == 7:
            raise KeyError("seven")
        return result


class TestMethodsOfASubclass:
    def test_an_action_that_it_cannot_encode_leaves_what_was_sent_before(self, server: Running) -> None:
        with OwnTranslation.vector(server.url, 2) as envs:
            envs.reset(seed=[0, 0])
            envs.send({0: Add(n=5, wait_s=0.3)})
            with pytest.raises(KeyError, match="thirteen"):
                envs.send({1: Add(n=13)})
            (outcome,) = envs.receive().values()
            assert isinstance(outcome, StepResult)
            assert outcome.observation.total == 5
            assert [state.step_count for state in envs.state()] == [1, 0]

    def test_so_with_an_async_vector(self, server: Running) -> None:
        async def play() -> None:
            async with OwnTranslation.aio.vector(server.url, 2) as envs:
                await envs.reset(seed=[0, 0])
                await envs.send({0: Add(n=5, wait_s=0.3)})
                with pytest.raises(KeyError, match="thirteen"):
                    await envs.send({1: Add(n=13)})
                (outcome,) = (await envs.receive()).values()
                assert isinstance(outcome, StepResult)
                assert outcome.observation.total == 5

        asyncio.run(play())

    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_a_result_that_it_cannot_parse_fails_its_own_session(self, server: Running, wire: Any) -> None:
        with OwnTranslation.vector(server.url, 3, wire=wire) as envs:
            envs.reset(seed=[0, 0, 0])
            result = envs.step([Add(n=1), Add(n=7), Add(n=2)])
            assert [one and one.total for one in result.observations] == [1, None, 2]
            assert list(result.errors) == [1]
            assert "_parse_result raised KeyError('seven')" in str(result.errors[1])
            assert isinstance(result.errors[1].__cause__, KeyError)
            assert envs.step([Add(n=0)] * 3).errors == {}, "the sessions go on"

    def test_so_where_each_session_has_its_own_speed(self, server: Running) -> None:
        with OwnTranslation.vector(server.url, 2) as envs:
            envs.reset(seed=[0, 0])
            outcomes = dict(envs.as_completed({0: Add(n=7), 1: Add(n=1, wait_s=0.3)}))
            assert isinstance(outcomes[0], ProtocolError)
            assert isinstance(outcomes[1], StepResult)


def test_tasks_that_step_an_async_vector_take_turns(server: Running) -> None:
    async def play() -> list[int]:
        async with CountingEnv.aio.vector(server.url, 2) as envs:
            await envs.reset(seed=[0, 0])
            steps = [envs.step([Add(n=1, wait_s=0.05), Add(n=1)]) for _ in range(3)]
            results = await asyncio.gather(*steps)
            return [result.observations[0].total for result in results]

    assert asyncio.run(play()) == [1, 4, 13]
