"""Episodes that end before the agent submits: not graded, unless the scorer of the documentation submits."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envtorch.envs.terminal_env import TerminalEnv
from envtorch.rollout import Completion, Ending, GroupScorer, Prompt, Rollouts, TrajectoryGroup
from tests.docs.run_page import blocks_of
from tests.envs.terminal_env.episodes import solution_of
from tests.support import Running

PAGE = Path(__file__).parents[3] / "docs/guides/terminal-tasks.md"
TASK = "search-a-log"


def scorer_of_the_page() -> GroupScorer:
    (block,) = (block for block in blocks_of(PAGE.read_text()) if "grade_at_the_end" in block.body)
    names: dict[str, Any] = {}
    exec(block.body, names)
    scorer: GroupScorer = names["score"]
    return scorer


async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
    """Does the work in its first turn, then looks at it for ever."""
    said = [sum(message["role"] == "assistant" for message in prompt.messages) for prompt in prompts]
    commands = [solution_of(TASK) if turns == 0 else "true" for turns in said]
    return [
        Completion(
            f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"
        )
        for command in commands
    ]


def play(url: str, score: GroupScorer | None) -> TrajectoryGroup:
    async def one_group() -> TrajectoryGroup:
        async with Rollouts(TerminalEnv, url, policy, max_turns=2, score=score) as rollouts:
            (group,) = [group async for group in rollouts.groups([{"task": TASK}], size=2)]
            return group

    return asyncio.run(one_group())


def test_work_that_was_never_submitted_is_not_graded(terminal_server: Running) -> None:
    group = play(terminal_server.url, None)
    assert {member.ending for member in group} == {Ending.MAX_TURNS}
    assert group.rewards == (0.0, 0.0)


def test_the_scorer_of_the_page_submits_at_the_end_of_the_turns(terminal_server: Running) -> None:
    group = play(terminal_server.url, scorer_of_the_page())
    assert {member.ending for member in group} == {Ending.MAX_TURNS}
    assert group.rewards == (1.0, 1.0)
