"""The attack suite through a live server: each is contained, and the session next door goes on.

Every day one attack of each group is tried here, and all of them on a sandbox (tests/sandbox); `make
test-attacks` tries all of them here, too.
"""

import dataclasses
from collections.abc import Iterator

import pytest

from envtorch.envs.coding_env import CodeAction, CodeObservation
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.server import create_app
from tests.sandbox.attack_runner import TIMEOUT_S, besieged, is_unharmed, policy
from tests.sandbox.attacks import Target, attacks
from tests.support import eventually, running

from .assault import Siege, laid_to

ATTACKS = attacks(Target(0, "/x", 1, "/x", "x"))
EVERYDAY = set({attack.group: number for number, attack in enumerate(ATTACKS)}.values())
NUMBERS = [
    pytest.param(number, id=attack.name, marks=() if number in EVERYDAY else pytest.mark.attacks)
    for number, attack in enumerate(ATTACKS)
]


@pytest.fixture(scope="module")
def siege(sandboxes: None) -> Iterator[Siege]:
    limits = dataclasses.replace(policy(container=False), timeout_s=TIMEOUT_S)
    app = create_app(
        lambda: CodingEnvironment(policy=limits), CodeAction, CodeObservation, max_concurrent_envs=8
    )
    with besieged(limits) as (target, _), running(app) as server:
        with laid_to(server.url, target, lambda: is_unharmed(target, within_s=20.0)) as found:
            yield found
        eventually(lambda: server.sessions.active == 0, "every session is closed")


@pytest.mark.parametrize("number", NUMBERS)
def test_contained(siege: Siege, number: int) -> None:
    siege.carry_out(attacks(siege.target)[number])
