"""The whole attack suite through a live server: each is contained, and the session next door goes on."""

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

NAMES = [attack.name for attack in attacks(Target(0, "/x", 1, "/x", "x"))]


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


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_contained(siege: Siege, number: int) -> None:
    siege.carry_out(attacks(siege.target)[number])
