"""The environments that are measured: whichever way they are stepped, they do the same."""

import asyncio

from bench.servers.environment import echo, together

import envtorch
from envtorch import Actions

MESSAGES = ("hello", "you", "")


def test_the_class_that_steps_together_is_the_echo() -> None:
    """One class, asked by `step`, by `step_async` and by `step_many`, and the plain echo beside it."""
    kind, say, _ = together(envtorch)
    plain = echo(envtorch, "inline").environment
    actions = [say(message=message, size=size) for message, size in zip(MESSAGES, (0, 3, 0), strict=True)]
    alone, awaited, joined, plainly = ([made() for _ in MESSAGES] for made in (kind, kind, kind, plain))
    for one in (*alone, *awaited, *joined, *plainly):
        one.reset()
    expected = [one.step(action) for one, action in zip(plainly, actions, strict=True)]
    assert [one.message for one in expected] == ["hello", "xxx", ""]
    for given in (
        [one.step(action) for one, action in zip(alone, actions, strict=True)],
        [asyncio.run(one.step_async(action)) for one, action in zip(awaited, actions, strict=True)],
    ):
        assert [(one.message, one.reward) for one in given] == [(one.message, one.reward) for one in expected]
    columns = kind.step_many(joined, Actions.of(actions))  # type: ignore[attr-defined]
    assert columns["message"] == [one.message for one in expected]
    assert columns["reward"] == [one.reward for one in expected]
    assert [one.state.step_count for one in (*alone, *awaited, *joined)] == [1] * 9
