"""Turns of one rollout: a completion, the steps it asks for, and what the policy sees of them."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from envtorch.errors import EnvTorchError, TimedOut
from envtorch.rollout.beginnings import RolloutClient
from envtorch.rollout.blame import Faults, NotAnAction, ending_of
from envtorch.rollout.chat_formats import RefusedCall
from envtorch.rollout.completions import Batcher, Completion, TokenUsage
from envtorch.rollout.finite_rewards import finite_total, reward_in
from envtorch.rollout.trajectories import Ending, TurnRecord
from envtorch.rollout.transcripts import Transcript
from envtorch.types import StepResult

__all__ = ["Over", "TurnTaker", "take_steps"]


class Over(NamedTuple):
    """Why a rollout is over."""

    ending: Ending
    blame: Exception | None = None


class TurnTaker:
    """Plays turns on a session until there is a reason to stop."""

    def __init__(
        self, batcher: Batcher, faults: Faults, *, max_turns: int, step_timeout_s: float | None
    ) -> None:
        self._batcher = batcher
        self.joined = batcher.joined
        """Makes calls of the policy wait for rollouts that are about to be played."""
        self._faults = faults
        self._max_turns = max_turns
        self._step_timeout_s = step_timeout_s

    async def play(
        self, client: RolloutClient, talk: Transcript, until: Callable[[Transcript], bool] | None = None
    ) -> Over | None:
        """Play to an ending, or until `until` holds after a turn: then None."""
        while len(talk.turns) < self._max_turns:
            over = await self._take(client, talk)
            if over is not None:
                return over
            if until is not None and len(talk.turns) < self._max_turns and until(talk):
                return None
        return Over(Ending.MAX_TURNS)

    def ending_of(self, error: EnvTorchError, *, has_acted: bool) -> Ending:
        """How a rollout ends with this error. Raises it if it is the caller's."""
        ending = ending_of(error, self._faults, has_acted=has_acted)
        if ending is None:
            raise error
        return ending

    async def _take(self, client: RolloutClient, talk: Transcript) -> Over | None:
        """One turn; why the rollout is over, or None."""
        began = time.perf_counter()
        completion = await self._batcher.complete(talk.prompt)
        policy_s = time.perf_counter() - began
        return await take_steps(
            client,
            talk,
            completion,
            faults=self._faults,
            step_timeout_s=self._step_timeout_s,
            policy_s=policy_s,
        )


async def take_steps(
    client: RolloutClient,
    talk: Transcript,
    completion: Completion,
    *,
    faults: Faults,
    step_timeout_s: float | None,
    policy_s: float = 0.0,
) -> Over | None:
    """The steps that a completion asks for; why the rollout is over, or None. Raises the caller's errors."""
    if completion.refusal is not None:
        usual = (
            Ending.POLICY if talk.turns else Ending.ENVIRONMENT
        )  # the policy has not written the first one
        return Over(faults.get(type(completion.refusal), usual), completion.refusal)
    prompt = talk.prompt
    completion = talk.say(completion)
    results: list[StepResult[Any]] = []
    rewards: list[float | None] = []
    total = sum(turn.reward or 0.0 for turn in talk.turns)
    over: Over | None = None
    began = time.perf_counter()
    try:
        for action in talk.format.actions(completion):
            if isinstance(action, RefusedCall):
                results.append(action.result)
                continue
            result = await _step(client, action, step_timeout_s)
            reward = reward_in(result)
            total = finite_total([total, reward or 0.0])
            rewards.append(reward)
            results.append(result)
            if result.done:
                break
    except NotAnAction as error:
        over = Over(Ending.POLICY, error)
    except EnvTorchError as error:
        ending = ending_of(error, faults, has_acted=True)
        if ending is None:
            raise
        over = Over(ending, error)
    step_s = time.perf_counter() - began
    usage = completion.usage or TokenUsage(len(prompt.ids or ()), len(completion.ids))
    talk.turns.append(TurnRecord(_sum(rewards), policy_s, step_s, usage.prompt, usage.said))
    if over is None and (not results or results[-1].done):
        over = Over(Ending.DONE)
    if over is None:
        talk.answer(results)
    return over


async def _step(client: RolloutClient, action: Any, timeout_s: float | None) -> StepResult[Any]:
    """One step. The limit is for the action: a recovery that takes longer goes on, within `recover_s`."""
    while True:
        try:
            return await client.step(action, timeout_s=timeout_s)
        except TimedOut as error:
            if not error.details.get("is_recovering") or (timeout_s or 0) <= 0:
                raise


def _sum(rewards: Sequence[float | None]) -> float | None:
    given = [reward for reward in rewards if reward is not None]
    return sum(given) if given else None
