"""Copies of the files are complete and alike, whatever processes and threads of the agent do meanwhile."""

import pytest

from envtorch.errors import EnvironmentFailed, OutOfResources
from envtorch.sandbox import Sandbox

from .writers import FILES, PROCESS, SHELL, THREAD, await_change, begin, files_in

ROUNDS = 6
FULL_TWICE = """
import os
workspace = os.getcwd()
data = os.urandom(6 << 20)
for top in 'ab':
    for _ in range(30):
        os.mkdir(top * 200); os.chdir(top * 200)
    if top == 'a':
        with open('large', 'wb') as file: file.write(data)
        place = os.open('.', os.O_RDONLY)
    else:
        os.link('large', 'large', src_dir_fd=place)
    os.chdir(workspace)
"""
"""A file with two names, neither of which has a path that is short enough to be given to the kernel: the copy
has two files, and no room for both."""


@pytest.mark.parametrize("writer", [PROCESS, SHELL, THREAD], ids=["process", "shell", "thread"])
def test_forks_beside_a_writer_are_complete_and_alike(forkable: Sandbox, writer: str) -> None:
    begin(forkable, writer)
    for _ in range(ROUNDS):
        _check_forks(forkable, 4)
    await_change(forkable)


def test_forks_that_are_entered_in_several_batches_are_alike(forkable: Sandbox) -> None:
    begin(forkable, PROCESS)
    _check_forks(forkable, 20)


def test_forks_of_a_fork_beside_a_writer_are_complete_and_alike(forkable: Sandbox) -> None:
    with forkable.fork()[0] as fork:
        begin(fork, PROCESS)
        _check_forks(fork, 4)
        await_change(fork)


def test_forks_made_in_a_call_beside_a_writer_are_complete_and_alike(forkable: Sandbox) -> None:
    begin(forkable, PROCESS)
    forkable.expose("look", lambda: _check_forks(forkable, 4))
    result = forkable.run(f"for _ in range({ROUNDS}): look()\n5")
    assert result.value == "5", result.exception
    await_change(forkable)


def test_a_copy_of_the_files_beside_a_writer_is_complete(sandbox: Sandbox) -> None:
    begin(sandbox, PROCESS)
    for _ in range(ROUNDS):
        with sandbox.copy() as copy:
            assert files_in(copy)[0] == FILES
    await_change(sandbox)


def test_processes_go_on_after_a_copy_that_failed(forkable: Sandbox) -> None:
    begin(forkable, PROCESS)
    assert forkable.run(FULL_TWICE).ok
    for attempt in (forkable.fork, forkable.copy):
        with pytest.raises((EnvironmentFailed, OutOfResources)):
            attempt()
        await_change(forkable)
    assert forkable.run("1 + 1").json() == 2


def test_a_process_that_the_agent_has_stopped_stays_stopped(forkable: Sandbox) -> None:
    forkable.run(
        "import os, signal, subprocess\nchild = subprocess.Popen(['sleep', '1000'])\n"
        "os.kill(child.pid, signal.SIGSTOP)\nos.waitpid(child.pid, os.WUNTRACED)"
    )
    forkable.fork()[0].close()
    state = "open(f'/proc/{child.pid}/stat').read().rpartition(')')[2].split()[0]"
    assert forkable.run(state).json() == "T"


def _check_forks(sandbox: Sandbox, count: int) -> None:
    forks = sandbox.fork(count)
    try:
        seen = [files_in(fork) for fork in forks]
    finally:
        for fork in forks:
            fork.close()
    assert [complete for complete, _, _ in seen] == [FILES] * count
    assert all(files == seen[0] for files in seen)
