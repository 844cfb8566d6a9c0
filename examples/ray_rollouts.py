"""Play rollouts on a Ray cluster: servers on its nodes, and beside each a driver that plays.

    python examples/ray_rollouts.py

Plays on the cluster of RAY_ADDRESS, or on one that it starts on this machine. The policy is a function that
is sent to the drivers; in its place stands an `OpenAIPolicy`, or an `ActorPolicy` with the handle of a model.
Needs Ray: pip install '.[ray]'.
"""

import asyncio
from collections.abc import Sequence

import ray
from rich import print as show

from envtorch.envs.coding_env import CodingEnv
from envtorch.pool import AsyncEnvPool
from envtorch.providers import RayWorkers
from envtorch.rollout import Completion, Prompt, Rollouts, RolloutSummary, with_progress

APP = "envtorch.envs.coding_env.app:app"
TASKS = 16


async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
    turns = [sum(message["role"] == "assistant" for message in prompt.messages) for prompt in prompts]
    return [Completion(f"```python\nx = {turn}\nprint(x * 7)\n```") for turn in turns]


async def main() -> None:
    start = {"cpus": 0.5}  # so that two servers and two drivers fit on a machine with two cores
    pool = AsyncEnvPool(CodingEnv.aio, "ray", APP, replicas=2, sessions_per_replica=32, start=start)
    drivers = RayWorkers(cpus=0.5)
    async with pool, Rollouts(CodingEnv, pool, policy, max_turns=3, concurrency=32, on=drivers) as rollouts:
        groups = with_progress(rollouts.groups(range(TASKS), size=4), TASKS)
        played = [member async for group in groups for member in group]
        show(RolloutSummary.of(played, rollouts.batches).table())


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    asyncio.run(main())
