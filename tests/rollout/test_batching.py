"""Batches: everybody who waits while the policy is busy is in its next call."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from envtorch.rollout import Completion, Prompt, RolloutPolicy
from envtorch.rollout.completions import BLOCKED_S, Batcher, linger


class Gate:
    """A policy that answers when it is told to."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.open = asyncio.Event()

    async def __call__(self, prompts: Sequence[Prompt]) -> list[Completion]:
        self.batches.append(len(prompts))
        await self.open.wait()
        return [Completion(str(prompt.messages[0]["content"])) for prompt in prompts]


def ask(batcher: Batcher, number: int) -> "asyncio.Task[Completion]":
    prompt = Prompt([{"role": "user", "content": str(number)}])
    return asyncio.get_running_loop().create_task(batcher.complete(prompt))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_local_model_sees_everybody_who_waited_for_it() -> None:
    async def scenario() -> None:
        gate = Gate()
        batcher = Batcher(gate, calls=1, size=64, linger_s=0)
        first = ask(batcher, 0)
        await settle()
        others = [ask(batcher, number) for number in range(1, 30)]
        await settle()
        assert gate.batches == [1]
        gate.open.set()
        answers = await asyncio.gather(first, *others)
        assert gate.batches == [1, 29]
        assert [answer.text for answer in answers] == [str(number) for number in range(30)]

    asyncio.run(scenario())


def test_an_endpoint_is_asked_at_once() -> None:
    async def scenario() -> None:
        gate = Gate()
        batcher = Batcher(gate, calls=64, size=64, linger_s=0)
        asked = []
        for number in range(5):
            asked.append(ask(batcher, number))
            await settle()
        assert gate.batches == [1] * 5, "nobody waited for anybody"
        gate.open.set()
        await asyncio.gather(*asked)

    asyncio.run(scenario())


def test_a_call_starts_when_every_rollout_waits_and_not_before() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.open.set()
        batcher = Batcher(gate, calls=1, size=64, linger_s=600)
        with batcher.joined(3) as leave:
            asked = [ask(batcher, 0), ask(batcher, 1)]
            await settle()
            assert gate.batches == [], "the third is in a step"
            asked.append(ask(batcher, 2))
            await asyncio.gather(*asked)
            assert gate.batches == [3]
            asked = [ask(batcher, 0), ask(batcher, 1)]
            await settle()
            leave()  # its episode is over: nobody waits for it
            await asyncio.gather(*asked)
            assert gate.batches == [3, 2]
        await batcher.close()

    asyncio.run(scenario())


def test_rollouts_that_end_without_having_left_are_waited_for_no_longer() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.open.set()
        batcher = Batcher(gate, calls=1, size=64, linger_s=600)
        with batcher.joined():
            with batcher.joined(3) as leave:
                leave()
                asked = ask(batcher, 0)
                await settle()
                assert gate.batches == []
            await asked
        assert (gate.batches, batcher.players) == ([1], 0)
        await batcher.close()

    asyncio.run(scenario())


def test_the_longer_calls_take_the_longer_others_are_waited_for() -> None:
    assert linger(0.005, last_call_s=0.0) == 0.005
    assert linger(0.005, last_call_s=0.02) == 0.005
    assert linger(0.005, last_call_s=4.0) == pytest.approx(0.4)
    assert linger(0.0, last_call_s=4.0) == 0.0, "an endpoint that batches by itself is asked at once"


def test_a_call_has_at_most_so_many_prompts() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.open.set()
        batcher = Batcher(gate, calls=1, size=4, linger_s=0)
        await asyncio.gather(*(ask(batcher, number) for number in range(10)))
        assert max(gate.batches) <= 4
        assert sum(gate.batches) == 10
        assert batcher.statistics.sizes == gate.batches

    asyncio.run(scenario())


def test_closing_cancels_those_who_wait() -> None:
    async def scenario() -> None:
        batcher = Batcher(Gate(), calls=1, size=4, linger_s=0)
        asked = ask(batcher, 0)
        await settle()
        await batcher.close()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(scenario())


def test_a_policy_that_blocks_the_event_loop_is_told_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def generates(prompts: Sequence[Prompt]) -> list[Completion]:
        time.sleep(1.5 * BLOCKED_S)  # noqa: ASYNC251, as a model does that generates on the loop
        return [Completion("") for _ in prompts]

    async def awaits(prompts: Sequence[Prompt]) -> list[Completion]:
        await asyncio.to_thread(time.sleep, 1.5 * BLOCKED_S)
        return [Completion("") for _ in prompts]

    async def scenario(policy: RolloutPolicy, calls: int) -> list[str]:
        caplog.clear()
        batcher = Batcher(policy, calls=1, size=1, linger_s=0)
        await asyncio.gather(*(ask(batcher, number) for number in range(calls)))
        await settle()
        return [record.getMessage() for record in caplog.records]

    [told] = asyncio.run(scenario(generates, 2))
    assert "the policy blocked the event loop for" in told
    assert "BlockingRollouts" in told
    assert asyncio.run(scenario(awaits, 1)) == []
