"""SkyRL on rollouts: a generator that plays whole groups, and a text environment for SkyRL's own generator.

    generator = SessionGenerator(MyEnv, "http://127.0.0.1:8000", engine, tokenizer, max_turns=8)
    skyrl_gym.register("my-env", entry_point="envtorch.train.skyrl_generator:SessionTextEnv")

A row's `env_extras["reset"]` has the options of `reset`. SkyRL 0.3 needs Python 3.12.
"""

import asyncio
import logging
import platform
import statistics
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import PydanticUserError

from envtorch.errors import ConfigurationError
from envtorch.extras import missing_extra
from envtorch.rollout import (
    ChatTemplate,
    Completion,
    OpenEpisode,
    Prompt,
    Rollouts,
    Task,
    Trajectory,
    TransformersTemplate,
)
from envtorch.train.client_classes import GivenClient, client_class
from envtorch.train.lost_rewards import filled_rewards

try:
    from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
except ImportError as error:
    raise missing_extra("skyrl", "the SkyRL adapter needs the skyrl package") from error
except PydanticUserError as error:  # what SkyRL 0.3 raises on 3.11
    raise ConfigurationError(
        f"SkyRL cannot be imported on Python {platform.python_version()}: use Python 3.12 or newer"
    ) from error

__all__ = ["SessionGenerator", "SessionTextEnv"]

T = TypeVar("T")
logger = logging.getLogger(__name__)


class SessionGenerator(GeneratorInterface):
    """Plays the batches of SkyRL's trainer: rows of one `instance_id` are a group, with one beginning.

    A member that has no reward, because the infrastructure lost it or its environment raised, gets a loss
    mask of zeros, so that nothing is learned from it, and a number in place of a reward (`filled_rewards`)
    that leaves the mean and the deviation of its group as they would be without it.
    """

    def __init__(
        self,
        client: GivenClient,
        where: str | Sequence[str],
        engine: Any,
        tokenizer: Any = None,
        *,
        template: ChatTemplate | None = None,
        **options: Any,
    ) -> None:
        """`engine` is SkyRL's inference engine client; `options` are those of `Rollouts`."""
        if template is None and tokenizer is None:
            raise ConfigurationError("a generator needs a tokenizer, or a template")
        self._client = client_class(client)
        self._where = where
        self._engine = engine
        self._template = template if template is not None else TransformersTemplate(tokenizer)
        self._options = options

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """Play a batch; rows in its order."""
        rows = _groups(input_batch)
        sampling = input_batch.get("sampling_params")

        async def complete(prompts: Sequence[Prompt]) -> list[Completion]:
            ids = [list(prompt.ids or ()) for prompt in prompts]
            asked = {
                "prompts": None,
                "prompt_token_ids": ids,
                "sampling_params": sampling,
                "session_ids": None,
            }
            answer = await self._engine.generate(asked)
            logprobs = answer.get("response_logprobs") or [None] * len(ids)
            stopped = answer.get("stop_reasons") or [None] * len(ids)
            said = zip(answer["response_ids"], logprobs, stopped, strict=True)
            return [Completion(ids=one, logprobs=told, is_cut=why == "length") for one, told, why in said]

        options = {"policy_calls": 64, **self._options}
        async with Rollouts(
            self._client, self._where, complete, template=self._template, **options
        ) as rollouts:
            playing = [self._play(rollouts, task, places) for task, places in rows]
            played = dict(pair for group in await asyncio.gather(*playing) for pair in group)
        output = [played[place] for place in range(len(played))]
        if output and all(trajectory.reward is None for trajectory, _ in output):
            why = output[0][0]
            logger.warning("none of %d rollouts has a reward: %s: %s", len(output), why.cause, why.blame)
        return _output(input_batch, output)

    async def _play(
        self, rollouts: Rollouts, task: Task, places: Sequence[int]
    ) -> list[tuple[int, tuple[Trajectory, float]]]:
        """The trajectories of one group, each with its row and the reward that it trains with."""
        async for group in rollouts.groups([task], size=len(places)):
            rewards = filled_rewards(group.rewards)
            return list(zip(places, zip(group, rewards, strict=True), strict=True))
        raise AssertionError("a task has a group")


def _groups(batch: GeneratorInput) -> list[tuple[Task, list[int]]]:
    """The tasks of a batch, each with the rows that are its members."""
    count = len(batch["prompts"])
    extras = batch.get("env_extras") or [{}] * count
    ids = batch.get("trajectory_ids") or [None] * count
    groups: dict[str, tuple[Task, list[int]]] = {}
    for place, (prompt, extra, id) in enumerate(zip(batch["prompts"], extras, ids, strict=True)):
        told = "\n\n".join(str(message["content"]) for message in prompt)
        task = Task(dict((extra or {}).get("reset") or {}), prompt=told)
        groups.setdefault(f"row-{place}" if id is None else id.instance_id, (task, []))[1].append(place)
    return list(groups.values())


def _output(batch: GeneratorInput, played: Sequence[tuple[Trajectory, float]]) -> GeneratorOutput:
    prompts, responses, masks, logprobs = [], [], [], []
    for trajectory, _ in played:
        tokens = trajectory.tokens
        said = tokens.after(tokens.prompt_length).trimmed()
        is_scored = trajectory.reward is not None and len(said) > 0
        prompts.append(list(tokens.ids[: tokens.prompt_length]) or [0])
        responses.append(list(said.ids) or [0])  # a row has at least one token
        masks.append(list(said.mask) if is_scored else [0] * max(1, len(said)))
        logprobs.append(list(said.logprobs) or [0.0])
    has_logprobs = all(trajectory.tokens.has_logprobs for trajectory, _ in played)
    scored = [reward for trajectory, reward in played if trajectory.reward is not None]
    return GeneratorOutput(
        prompt_token_ids=prompts,
        response_ids=responses,
        rewards=[reward for _, reward in played],
        loss_masks=masks,
        stop_reasons=[str(trajectory.ending) for trajectory, _ in played],
        rollout_metrics={
            "envtorch/reward": statistics.fmean(scored) if scored else 0.0,
            "envtorch/not_scored": float(len(played) - len(scored)),
            "envtorch/turns": statistics.fmean(len(one.turns) for one, _ in played),
        },
        rollout_logprobs=logprobs if has_logprobs else None,
        trajectory_ids=batch.get("trajectory_ids"),
    )


class SessionTextEnv(BaseTextEnv):
    """One session as an environment of `skyrl_gym`, for SkyRL's own generator.

    `extras` has `client` (a class or `"module:Class"`), `base_url`, `reset` and `max_turns`. What is not the
    policy's fault raises.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        given = dict(extras or {})
        missing = sorted({"client", "base_url"} - set(given))
        if missing:
            raise ConfigurationError(f"the environment's extras need {' and '.join(missing)}")
        self._client = client_class(given["client"])
        self._base_url = str(given["base_url"])
        self._reset = dict(given.get("reset") or {})
        self.max_turns = int(given.get("max_turns", 20))
        self._runner = asyncio.Runner()
        self._episode: OpenEpisode | None = None

    def init(self, prompt: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Begin the episode; the conversation up to the policy's first turn."""
        task = Task(self._reset, prompt="\n\n".join(message["content"] for message in prompt))
        beginning = OpenEpisode.begin(self._client, self._base_url, task, max_turns=self.max_turns)
        self._episode = self._wait_for(beginning)
        return list(self._episode.messages), {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take the policy's turn."""
        if self._episode is None:
            raise ConfigurationError("the episode has not begun: call init first")
        self.turns += 1
        heard = self._wait_for(self._episode.act(Completion(action)))
        self._episode.raise_unless_scored()
        over = self._episode.over
        return BaseTextEnvStepOutput(
            observations=[] if over is not None else list(heard),
            reward=self._episode.turn_reward or 0.0,
            done=over is not None,
            metadata={"ending": str(over.ending)} if over is not None else {},
        )

    def close(self) -> None:
        """End the session."""
        if self._episode is not None:
            self._wait_for(self._episode.close())
            self._episode = None
        self._runner.close()

    def _wait_for(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end, on the loop of this environment."""
        if _is_in_event_loop():
            call.close()
            raise ConfigurationError(
                "a text environment blocks while its server works, and this one was called in an event loop: "
                "set SkyRL's max_env_workers to more than 0"
            )
        return self._runner.run(call)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
