"""Plays one whole episode with an OpenEnv client and prints it: `play_tally.py URL KIND`."""

import asyncio
import json
import sys
from typing import Any

from openenv import GenericEnvClient
from tally import TallyAction, TallyEnv


def told(result: Any) -> dict[str, Any]:
    observation = result.observation
    if not isinstance(observation, dict):
        observation = observation.model_dump(exclude={"reward", "done"})
    return {"observation": observation, "reward": result.reward, "done": result.done}


def as_dict(state: Any) -> Any:
    return state if isinstance(state, dict) else state.model_dump()


def action(kind: str, amount: int, note: str) -> Any:
    if "generic" in kind:
        return {"amount": amount, "note": note}
    return TallyAction(amount=amount, note=note)


RESET = {"seed": 7, "episode_id": "an-episode", "start": 1}
STEPS = [(3, "three"), (0, "nothing"), (6, "six")]


def play(client: Any, kind: str) -> dict[str, Any]:
    with client as env:
        told_reset = told(env.reset(**RESET))
        steps = [told(env.step(action(kind, *step))) for step in STEPS]
        state = as_dict(env.state())
        try:
            env.step(action(kind, -1, "too little"))
        except RuntimeError as error:
            failure = str(error)
        after = as_dict(env.state())
    return {"reset": told_reset, "steps": steps, "state": state, "failure": failure, "after": after}


async def play_async(client: Any, kind: str) -> dict[str, Any]:
    async with client as env:
        told_reset = told(await env.reset(**RESET))
        steps = [told(await env.step(action(kind, *step))) for step in STEPS]
        state = as_dict(await env.state())
        try:
            await env.step(action(kind, -1, "too little"))
        except RuntimeError as error:
            failure = str(error)
        after = as_dict(await env.state())
    return {"reset": told_reset, "steps": steps, "state": state, "failure": failure, "after": after}


def main() -> None:
    url, kind = sys.argv[1:]
    client = GenericEnvClient(base_url=url) if "generic" in kind else TallyEnv(base_url=url)
    if "async" in kind:
        episode = asyncio.run(play_async(client, kind))
    else:
        episode = play(client.sync() if "sync()" in kind else client, kind)
    print(json.dumps(episode))


if __name__ == "__main__":
    main()
