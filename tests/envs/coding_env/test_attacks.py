"""The whole attack suite through a live server: each is contained, and the session next door goes on."""

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from envtorch.envs.coding_env import CodeAction, CodeObservation, CodingEnv
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.errors import EnvironmentFailed
from envtorch.sandbox import Outcome
from envtorch.server import create_app
from tests.sandbox.attack_runner import TIMEOUT_S, besieged, policy
from tests.sandbox.attacks import Target, attacks
from tests.support import Running, eventually, running

NOWHERE = Target(0, "/x", 1, "/x", "x")
NAMES = [attack.name for attack in attacks(NOWHERE)]
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
    neighbour: CodingEnv
    contained: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def siege(sandboxes: None) -> Iterator[Siege]:
    limits = dataclasses.replace(policy(container=False), timeout_s=TIMEOUT_S)

    def make() -> CodingEnvironment:
        return CodingEnvironment(policy=limits)

    app = create_app(make, CodeAction, CodeObservation, max_concurrent_envs=8)
    with besieged(limits) as (target, _), running(app) as server:
        with CodingEnv(server.url, message_timeout_s=PATIENCE_S) as neighbour:
            neighbour.reset()
            neighbour.step(CodeAction(code="kept = 'undisturbed'"))
            neighbour.step(CodeAction(code=f"open('neighbour.txt', 'w').write({target.secret!r})"))
            found = Siege(server, target, neighbour)
            yield found
        eventually(lambda: server.sessions.active == 0, "every session is closed")
    print(f"\n{len(found.tried)} attacks on a live server, {len(found.contained)} contained")


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_contained(siege: Siege, number: int) -> None:
    attack = attacks(siege.target)[number]
    siege.tried.append(attack.name)
    with CodingEnv(siege.server.url, message_timeout_s=PATIENCE_S) as env:
        env.reset()
        result = env.step(CodeAction(code=attack.code))
        seen = result.observation
        what = (seen.outcome, seen.stdout[-300:], seen.stderr[-300:])
        assert attack.contained(Seen(Outcome(seen.outcome), seen.stdout)), what
        assert siege.target.secret not in f"{seen.stderr}{seen.value}", what
        assert (seen.exit_code == 0) == (seen.outcome in ("ok", "output truncated")), what
        if result.done:  # its interpreter is gone, and it says so; the session begins another episode
            with pytest.raises(EnvironmentFailed, match="call reset"):
                env.step(CodeAction(code="1"))
            env.reset()
            assert env.step(CodeAction(code="1")).observation.value == "1"
    assert siege.neighbour.step(CodeAction(code="kept")).observation.value == "'undisturbed'"
    with open(siege.target.secret_file, encoding="utf-8") as file:
        assert file.read() == siege.target.secret
    assert not os.path.exists(f"{siege.target.secret_file}.pwned")
    siege.contained.append(attack.name)
