"""An agent loop for verl: its engine generates, EnvTorch plays.

    # agent_loops.yaml, named by actor_rollout_ref.rollout.agent.agent_loop_config_path
    - name: envtorch
      _target_: envtorch.train.verl_loop.EnvTorchLoop
      client: my_env:MyEnv
      base_url: http://127.0.0.1:8000
      max_turns: 8

A row of the dataset says `agent_name: envtorch`; its `reset`, or `extra_info["reset"]`, has the options of
`reset`, and the last message of its `raw_prompt` is the instruction. A response is cut at `response_length`,
and has the reward of the turns that are left. An episode that the infrastructure loses is played again,
`attempts` times. Then `run` raises why: verl has no place for a rollout without a reward.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from envtorch.errors import SessionLost
from envtorch.extras import missing_extra
from envtorch.rollout import Completion, Prompt, Rollouts, Task, Trajectory, TransformersTemplate
from envtorch.train.client_classes import GivenClient, client_class

try:
    from verl.experimental.agent_loop.agent_loop import (
        AgentLoopBase,
        AgentLoopMetrics,
        AgentLoopOutput,
        register,
    )
except ImportError as error:
    raise missing_extra("verl", "the verl adapter needs the verl package") from error

__all__ = ["EnvTorchLoop"]


@register("envtorch")
class EnvTorchLoop(AgentLoopBase):
    """Plays one episode for one row of a batch."""

    def __init__(
        self,
        *args: Any,
        client: GivenClient,
        base_url: str | Sequence[str],
        rollout_options: Mapping[str, Any] | None = None,
        max_turns: int = 20,
        **kwargs: Any,
    ) -> None:
        """`client` is a class or `"module:Class"`; `base_url` is an address, or several; `rollout_options`
        are further options of `Rollouts`. The rest is verl's."""
        super().__init__(*args, **kwargs)
        self._client = client_class(client)
        self._where = base_url if isinstance(base_url, str) else list(base_url)
        self._options = {"max_turns": max_turns, **(rollout_options or {})}

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play one episode."""
        request_id = uuid.uuid4().hex

        async def complete(prompts: Sequence[Prompt]) -> list[Completion]:
            answers = await asyncio.gather(
                *(
                    self.server_manager.generate(
                        request_id=request_id,
                        prompt_ids=list(prompt.ids or ()),
                        sampling_params=sampling_params,
                    )
                    for prompt in prompts
                )
            )
            return [Completion(ids=one.token_ids, logprobs=one.log_probs) for one in answers]

        template = TransformersTemplate(self.tokenizer, **self.apply_chat_template_kwargs)
        playing = Rollouts(
            self._client, self._where, complete, template=template, concurrency=1, **self._options
        )
        async with playing as rollouts:
            trajectory = await rollouts.run(_task(row))
        return self._output(trajectory)

    def _output(self, trajectory: Trajectory) -> AgentLoopOutput:
        if trajectory.reward is None:
            raise trajectory.blame or SessionLost(f"the episode is over: {trajectory.cause}")
        tokens = trajectory.tokens
        said = tokens.after(tokens.prompt_length).trimmed()
        most = self.rollout_config.response_length
        return AgentLoopOutput(
            prompt_ids=list(tokens.ids[: tokens.prompt_length]),
            response_ids=list(said.ids[:most]),
            response_mask=list(said.mask[:most]),
            response_logprobs=list(said.logprobs[:most]) if said.has_logprobs else None,
            reward_score=trajectory.reward_within(most),
            num_turns=len(trajectory.messages),
            metrics=AgentLoopMetrics(
                generate_sequences=sum(turn.policy_s for turn in trajectory.turns),
                tool_calls=sum(turn.step_s for turn in trajectory.turns),
            ),
            extra_fields={
                "ending": trajectory.cause,
                "task": trajectory.task.id,
                "was_cut": len(said) > most,
            },
        )


def _task(row: Mapping[str, Any]) -> Task:
    options = row.get("reset") or (row.get("extra_info") or {}).get("reset") or {}
    messages = row.get("raw_prompt")
    prompt = str(messages[-1]["content"]) if messages is not None and len(messages) else ""
    return Task(dict(options), prompt=prompt)
