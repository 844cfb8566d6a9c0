"""EnvTorch and OpenEnv 0.10.0 play whole episodes on each other, over real sockets."""

import asyncio
import subprocess
from typing import Any

import pytest

from envtorch.client import EnvClient, GenericEnvClient
from envtorch.errors import EnvironmentFailed
from envtorch.types import StepResult
from tests.support import PATIENCE_S

from .processes import OPENENV_BIN, ours, played
from .tally import TallyAction, TallyEnv, TallyObservation

pytestmark = [pytest.mark.compat, pytest.mark.usefixtures("openenv")]

RESET: dict[str, Any] = {"seed": 7, "episode_id": "an-episode", "start": 1}
STEPS = [(3, "three"), (0, "nothing"), (6, "six")]

KINDS = [
    "plain",
    "sync()",
    "async",
    "generic",
    "generic sync()",
    "generic async",
]


def observed(total: int, notes: list[str], reward: float, step: int) -> dict[str, Any]:
    metadata = {"step": step} if step else {}
    observation = {"total": total, "notes": notes, "metadata": metadata}
    return {"observation": observation, "reward": reward, "done": total >= 10}


WHOLE_EPISODE = {
    "reset": observed(1, [], 0.0, 0),
    "steps": [
        observed(4, ["three"], 0.3, 1),
        observed(4, ["three", "nothing"], 0.0, 2),
        observed(10, ["three", "nothing", "six"], 0.6, 3),
    ],
    "state": {"episode_id": "an-episode", "step_count": 3, "total": 10, "seed": 7},
}


@pytest.mark.parametrize("kind", KINDS)
def test_openenv_client_on_our_server(our_server: str, kind: str) -> None:
    episode = played("play_tally.py", our_server, kind)

    assert {name: episode[name] for name in WHOLE_EPISODE} == WHOLE_EPISODE
    assert "a tally only grows" in episode["failure"]
    assert "EXECUTION_ERROR" in episode["failure"]
    assert episode["after"] == WHOLE_EPISODE["state"], "a failed step must leave the episode alive"


def test_openenv_client_sees_the_same_on_both_servers(our_server: str, openenv_server: str) -> None:
    assert played("play_tally.py", our_server, "async") == played("play_tally.py", openenv_server, "async")


def told(result: StepResult[Any]) -> dict[str, Any]:
    seen = result.observation
    observation = seen.model_dump(exclude={"reward", "done"}) if isinstance(seen, TallyObservation) else seen
    return {"observation": observation, "reward": result.reward, "done": result.done}


def as_action(client: object, amount: int, note: str) -> Any:
    if isinstance(client, GenericEnvClient):
        return {"amount": amount, "note": note}
    return TallyAction(amount=amount, note=note)


@pytest.mark.parametrize("client", [TallyEnv, GenericEnvClient])
def test_our_blocking_client_on_openenv_server(
    openenv_server: str, client: type[EnvClient[Any, Any, Any]]
) -> None:
    with client(openenv_server) as env:
        episode: dict[str, Any] = {
            "reset": told(env.reset(**RESET)),
            "steps": [told(env.step(as_action(env, *step))) for step in STEPS],
            "state": _state(env.state()),
        }
        with pytest.raises(EnvironmentFailed, match="a tally only grows"):
            env.step(as_action(env, -1, "too little"))
        assert _state(env.state()) == episode["state"]

    assert episode == WHOLE_EPISODE


@pytest.mark.parametrize("client", [TallyEnv, GenericEnvClient])
def test_our_async_client_on_openenv_server(
    openenv_server: str, client: type[EnvClient[Any, Any, Any]]
) -> None:
    async def play() -> dict[str, Any]:
        example = client(openenv_server)
        async with client.aio(openenv_server) as env:
            episode: dict[str, Any] = {
                "reset": told(await env.reset(**RESET)),
                "steps": [told(await env.step(as_action(example, *step))) for step in STEPS],
                "state": _state(await env.state()),
            }
            with pytest.raises(EnvironmentFailed, match="a tally only grows"):
                await env.step(as_action(example, -1, "too little"))
        return episode

    assert asyncio.run(play()) == WHOLE_EPISODE


def _state(state: Any) -> Any:
    return state if isinstance(state, dict) else state.model_dump()


@pytest.mark.parametrize("mode", ["simulation", "production"])
def test_openenv_validates_our_server(mode: str) -> None:
    with ours(environ={"OPENENV_MODE": mode}) as url:
        verdict = subprocess.run(
            [str(OPENENV_BIN / "openenv"), "validate", "--url", url, "--timeout", "30"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    assert "Verdict: PASS" in verdict.stdout
    assert f"mode: {mode}" in verdict.stdout
