"""The blocking twin, with and without another loop around it."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envtorch.errors import ClientClosed
from envtorch.rollout import BlockingRollouts, Completion, Ending, Prompt, TrajectoryFile
from tests.rollout.dials import DialEnv, dials, upwards
from tests.support import PATIENCE_S, Running, eventually


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


def generate(prompts: Sequence[Prompt]) -> list[Completion]:
    return [Completion(f'{{"number": {upwards(prompt)}}}') for prompt in prompts]


def test_groups_and_episodes_are_played_without_awaiting(server: Running, tmp_path: Path) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    before = set(threading.enumerate())
    with BlockingRollouts(DialEnv, server.url, generate) as rollouts:
        groups = list(rollouts.groups(range(4), size=2, record=file))
        assert rollouts.run(3).ending is Ending.DONE
        tree = rollouts.tree(3, branch_when=lambda talk: len(talk.turns) == 1, max_leaves=2)
        rollouts.park()
        rollouts.resume(version=2)
        assert rollouts.run(3).ending is Ending.DONE
    assert [t.ending for group in groups for t in group] == [Ending.DONE] * 8
    assert len(file) == 4
    assert len(tree.trajectories) == 2
    eventually(lambda: server.sessions.active == 0, "every session is closed")
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert set(left) <= {"envtorch-environment"}, "the server, in this process, keeps threads for sessions"


def test_it_works_inside_a_running_loop_as_in_a_notebook(server: Running) -> None:
    async def cell() -> Ending:
        with BlockingRollouts(DialEnv, server.url, generate) as rollouts:
            return rollouts.run(1).ending

    assert asyncio.run(cell()) is Ending.DONE


def test_groups_that_are_not_wanted_any_more_are_cancelled(server: Running) -> None:
    with BlockingRollouts(DialEnv, server.url, generate, concurrency=8) as rollouts:
        for _ in rollouts.groups(iter(int, 1), size=4):  # endless
            break
    eventually(lambda: server.sessions.active == 0, "every session is closed")


def test_what_the_policy_raises_reaches_the_caller(server: Running) -> None:
    def broken(prompts: Sequence[Prompt]) -> list[Completion]:
        raise ArithmeticError("no model today")

    with (
        BlockingRollouts(DialEnv, server.url, broken) as rollouts,
        pytest.raises(ArithmeticError, match="no model"),
    ):
        rollouts.run(1)


INTERRUPTED = """
import os, signal, sys, time
from envtorch.rollout import BlockingRollouts
from tests.rollout.dials import DialEnv
from tests.rollout.test_blocking_rollouts import generate

calls = []

def interrupting(prompts):
    calls.append(prompts)
    if len(calls) == 1:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)
    return generate(prompts)

try:
    with BlockingRollouts(DialEnv, sys.argv[1], interrupting) as rollouts:
        for group in rollouts.groups(range(100), size=2):
            pass
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_is_a_keyboard_interrupt_and_leaves_no_session(server: Running) -> None:
    script = [sys.executable, "-c", INTERRUPTED, server.url]
    done = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
    eventually(lambda: server.sessions.active == 0, "every session is closed")


def test_closed_rollouts_say_so(server: Running) -> None:
    rollouts = BlockingRollouts(DialEnv, server.url, generate)
    rollouts.close()
    rollouts.close()
    with pytest.raises(ClientClosed):
        rollouts.run(1)
