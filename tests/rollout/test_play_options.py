"""Wrong options are refused when rollouts are made: no episode is scored by them."""

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest

from envtorch.errors import ConfigurationError, InvalidAction, TimedOut
from envtorch.rollout import (
    BlockingRollouts,
    ChatFormat,
    Completion,
    Ending,
    OpenEpisode,
    Rollouts,
)
from envtorch.rollout.blame import ending_of
from tests.rollout.dials import DialEnv, Player, dials, upwards
from tests.support import Running

NOWHERE = "http://127.0.0.1:9"
"""Nothing is opened here: options are refused before."""

WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        ({"step_timeout_s": wrong}, "step_timeout_s is a number of seconds")
        for wrong in (0, -1, math.nan, "5")
    ),
    *(({"reset_timeout_s": wrong}, "reset_timeout_s is a number") for wrong in (0, -1, math.nan, True)),
    *(
        ({name: wrong}, f"{name} is a whole number of at least 1")
        for name in ("concurrency", "max_turns", "attempts", "policy_calls", "batch_size")
        for wrong in (0, -1, 1.5, "4", True)
    ),
    ({"share": "frok"}, "share is 'fork', 'reset'"),
    ({"faults": {"TimedOut": Ending.LOST}}, "faults are endings by class of error"),
    ({"faults": {TimedOut: "lost"}}, "faults are endings by class of error"),
    ({"faults": [TimedOut]}, "faults are endings by class of error"),
    ({"score": 1.0}, "score is 1.0: give an async function"),
    ({"template": "chatml"}, "give a ChatTemplate"),
    ({"format": "json"}, "give a ChatFormat"),
    ({"where": None}, "where is None: give the address of a server"),
    ({"where": [None]}, "give the address of a server"),
    ({"where": 8000}, "where is 8000"),
    ({"client": "DialEnv"}, "client is 'DialEnv': give the class"),
    ({"client": int}, "give the class of an environment's client"),
    ({"policy": None}, "policy is None: give"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


@pytest.mark.parametrize("kind", [Rollouts, BlockingRollouts, BlockingRollouts.refuse_wrong])
@pytest.mark.parametrize(("wrong", "told"), WRONG)
def test_a_wrong_option_is_refused_when_rollouts_are_made(
    kind: Any, wrong: dict[str, Any], told: str
) -> None:
    given = {"client": DialEnv, "where": NOWHERE, "policy": Player(upwards), **wrong}
    with pytest.raises(ConfigurationError, match=told.replace("(", r"\(")):
        kind(**given)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"size": 0}, "size is a whole number"),
        ({"size": 1.5}, "size is a whole number"),
        ({"size": "8"}, "size is a whole number"),
        ({"record": "played.jsonl"}, r"give TrajectoryFile\(path\)"),
    ],
)
def test_wrong_options_of_groups_are_refused_by_the_call(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Rollouts(DialEnv, NOWHERE, Player(upwards)).groups([1], **wrong)
    blocking: Any = Player(upwards)
    rollouts = BlockingRollouts(DialEnv, NOWHERE, blocking)
    with rollouts, pytest.raises(ConfigurationError, match=told):
        rollouts.groups([1], **wrong)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"width": 3, "max_leaves": 2}, "never branches: .*max_leaves at least the width"),
        ({"width": 1}, "never branches: width is 2 or more"),
        ({"width": "2"}, "width is a whole number"),
        ({"max_leaves": 0}, "max_leaves is a whole number"),
        ({"branch_when": True}, "branch_when is True: give a function"),
    ],
)
def test_a_tree_that_cannot_branch_is_refused(wrong: dict[str, Any], told: str) -> None:
    async def grow() -> None:
        async with Rollouts(DialEnv, NOWHERE, Player(upwards)) as rollouts:
            await rollouts.tree(1, **{"branch_when": lambda talk: True, **wrong})

    with pytest.raises(ConfigurationError, match=told):
        asyncio.run(grow())


@pytest.mark.parametrize(
    "wrong", [{"step_timeout_s": 0}, {"max_turns": 0}, {"faults": 3}, {"size": 0}, {"reset_timeout_s": -1}]
)
def test_an_open_episode_refuses_wrong_options_before_it_opens_a_session(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        asyncio.run(OpenEpisode.begin_group(DialEnv, NOWHERE, 1, **{"size": 2, **wrong}))


def test_a_format_whose_actions_are_none_is_not_the_policys_fault(server: Running) -> None:
    class Texts(ChatFormat):
        def actions(self, completion: Completion) -> list[Any]:
            return [completion.text]

    async def play() -> None:
        async with Rollouts(DialEnv, server.url, Player(upwards), format=Texts()) as rollouts:
            await rollouts.run(1)

    with pytest.raises(InvalidAction, match="an action is"):
        asyncio.run(play())


def test_an_argument_that_no_policy_chose_has_no_ending() -> None:
    assert ending_of(InvalidAction("timeout", wrong_argument="timeout_s"), {}, has_acted=True) is None
    assert ending_of(InvalidAction("number: missing"), {}, has_acted=True) is Ending.POLICY
