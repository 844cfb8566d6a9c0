"""The sandbox's attack suite through `REPLEnv`: each attack is contained, and the session next door goes on.

Every day one attack of each group is tried; `make test-attacks` tries them all.
"""

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from envtorch.envs.repl_env import REPLAction, REPLEnv, REPLEnvironment, REPLObservation
from envtorch.errors import EnvironmentFailed
from envtorch.sandbox import Outcome
from envtorch.server import create_app
from envtorch.settings import REPLSettings
from tests.sandbox.attack_runner import TIMEOUT_S, besieged, policy
from tests.sandbox.attacks import Target, attacks
from tests.support import Running, eventually, running

NOWHERE = Target(0, "/x", 1, "/x", "x")
ATTACKS = attacks(NOWHERE)
EVERYDAY = set({attack.group: number for number, attack in enumerate(ATTACKS)}.values())
PATIENCE_S = 100.0


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation, as the suite judges it."""

    outcome: Outcome
    stdout: str


@dataclass(slots=True)
class Siege:
    """A live server, what there is to attack, and a session that must not notice."""

    server: Running
    target: Target
    neighbour: REPLEnv
    contained: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def siege(sandboxes: None) -> Iterator[Siege]:
    limits = dataclasses.replace(policy(container=False), timeout_s=TIMEOUT_S)

    def make() -> REPLEnvironment:
        return REPLEnvironment(policy=limits, settings=REPLSettings(), llm_query_fn=str.upper)

    app = create_app(make, REPLAction, REPLObservation, max_concurrent_envs=8)
    with besieged(limits) as (target, _), running(app) as server:
        with REPLEnv(server.url, message_timeout_s=PATIENCE_S) as neighbour:
            neighbour.reset(context=f"a secret of the neighbour's: {target.secret}", max_iterations=1000)
            neighbour.execute("kept = 'undisturbed'")
            found = Siege(server, target, neighbour)
            yield found
        eventually(lambda: server.sessions.active == 0, "every session is closed")
    print(f"\n{len(found.tried)} attacks through REPLEnv, {len(found.contained)} contained")


NUMBERS = [
    pytest.param(number, id=attack.name, marks=() if number in EVERYDAY else pytest.mark.attacks)
    for number, attack in enumerate(ATTACKS)
]


@pytest.mark.parametrize("number", NUMBERS)
def test_contained(siege: Siege, number: int) -> None:
    attack = attacks(siege.target)[number]
    siege.tried.append(attack.name)
    rules = {"max_output_length": 100_000}
    with REPLEnv(siege.server.url, message_timeout_s=PATIENCE_S, **rules) as env:  # type: ignore[arg-type]
        env.reset(context="bait")
        result = env.execute(attack.code)
        seen, outcome = result.observation.result, result.observation.metadata["outcome"]
        what = (outcome, seen.stdout[-300:], seen.stderr[-300:])
        assert attack.contained(Seen(Outcome(outcome), seen.stdout)), what
        assert siege.target.secret not in result.observation.model_dump_json(), what
        assert seen.success == (outcome in ("ok", "output truncated")), what
        if result.done:  # its interpreter is gone, and it says so; the session begins another episode
            with pytest.raises(EnvironmentFailed, match="call reset"):
                env.execute("1")
            env.reset()
        assert env.execute("llm_query('alive')").observation.result.stdout == '"ALIVE"'
    assert siege.neighbour.execute("kept").observation.result.stdout == '"undisturbed"'
    with open(siege.target.secret_file, encoding="utf-8") as file:
        assert file.read() == siege.target.secret
    assert not os.path.exists(f"{siege.target.secret_file}.pwned")
    siege.contained.append(attack.name)
