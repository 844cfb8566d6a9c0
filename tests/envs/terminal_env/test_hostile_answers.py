"""Whatever an agent leaves ends in a score: it cannot turn a 0 into an error, a hang, or another's loss."""

import dataclasses
import errno
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envtorch.envs.terminal_env import BashAction, SubmitAction
from envtorch.envs.terminal_env.environment import TerminalEnvironment
from envtorch.envs.terminal_env.episode_tasks import EpisodeTask
from envtorch.envs.terminal_env.harbor import GradingPlan, load_task
from envtorch.envs.terminal_env.task_grading import Grade
from envtorch.errors import EnvironmentFailed, OutOfResources
from envtorch.sandbox import Completed, Workspace
from tests.envs.terminal_env.made_tasks import make_task
from tests.sandbox.roots import HOST, require_host_root
from tests.support import eventually

TEST = """#!/bin/bash
# The worst kind of tests: they run the agent's program as root, and read its answer without any care.
bash /app/run
[ "$(cat /app/answer)" = 42 ]
echo $((1 - $?)) > /logs/verifier/reward.txt
"""
SETTINGS = 'schema_version = "1.4"\n[verifier]\ntimeout_sec = {}\n'
ENOUGH_S = 60.0

NEST = "python3 -c \"import os\nfor _ in range({count}): os.mkdir('{name}'); os.chdir('{name}')\""
ANSWERS = {
    "a directory": "mkdir /app/answer",
    "a link to itself": "ln -s answer /app/answer",
    "a socket": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/app/answer')\"",
    "a file of nothing but a hole": "truncate -s 60M /app/answer",
    "a file that nobody may read": "echo 0 > /app/answer; chmod 000 /app/answer /app",
    "folders nested 1,500 deep": NEST.format(count=1500, name="d"),
    "folders nested beyond the longest path": NEST.format(count=60, name="d" * 200),
    "a full disk": "head -c 100M /dev/zero > /app/full",
    "a disk without room for another name": "mkdir /app/many; cd /app/many; seq 1 20000 | xargs touch",
    "one file with a hundred names": "cd /app; yes | head -c 10M > y; for n in $(seq 100); do ln y $n; done",
    "names that are no text": "n=$'\\xff'; mkdir /opt/$n; touch /$n /app/$n /opt/$n/$n",
    "a file in place of a folder that every session has": "rm -rf /tmp; touch /tmp",
    "a link to nothing in place of one": "rm -rf /tmp; ln -s /nonexistent /tmp",
    "folders in place of files that every session has": "cd /etc; rm -f hosts hostname; mkdir hosts hostname",
    "processes that ignore signals": "(trap '' TERM INT HUP; while :; do :; done) >/dev/null 2>&1 &",
}
"""Commands of an agent, and none of them makes the answer that is wanted."""

AT_THE_TESTS = {
    "it ends the tests": "kill -9 $PPID",
    "it ends all of the tests": "kill -9 -1",
    "it fills the disk": "head -c 100M /dev/zero > /tmp/full; head -c 100M /dev/zero > /logs/verifier/full",
    "it takes all names of the disk": "mkdir /tmp/many; cd /tmp/many; seq 1 20000 | xargs touch 2>/dev/null",
    "it takes all processes": "for n in $(seq 200); do sleep 1000 & done 2>/dev/null",
    "it takes all memory": "python3 -c 'x = [b\"x\" * 2**20 for _ in range(4096)]'; yes $(yes | head -c 99M)",
    "it makes the reward a directory": "mkdir /logs/verifier/reward.txt",
    "it writes a reward that is none": "echo '{' > /logs/verifier/reward.json",
    "it removes the place of the reward": "rm -rf /logs",
}
"""Programs of an agent that the tests run as root."""


def begin(
    folder: Path, *, timeout_s: float = ENOUGH_S, plan: GradingPlan = "image", directory: str = "/app"
) -> EpisodeTask:
    require_host_root()
    files = {
        "task.toml": SETTINGS.format(timeout_s),
        "environment/Dockerfile": f"FROM debian:12\nWORKDIR {directory}\n",
    }
    task = load_task(make_task(folder / "task", TEST, **files)).model_copy(update={"grading": plan})
    return EpisodeTask.of(task, HOST)


def grade_after(episode: EpisodeTask, command: str) -> Grade:
    with episode.open() as workspace:
        workspace.run(command, timeout_s=20)
        return episode.grade(workspace)


def test_an_honest_answer_scores_1(tmp_path: Path) -> None:
    graded = grade_after(begin(tmp_path), "echo 42 > /app/answer")
    assert (graded.reward, graded.why) == (1.0, "")


@pytest.mark.parametrize("plan", ["image", "agent", "live"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_no_answer_is_an_error(tmp_path: Path, answer: str, plan: GradingPlan) -> None:
    assert grade_after(begin(tmp_path, plan=plan), ANSWERS[answer]).reward == 0.0


@pytest.mark.parametrize("program", AT_THE_TESTS)
def test_a_program_that_keeps_the_tests_from_a_reward_scores_0(tmp_path: Path, program: str) -> None:
    episode = begin(tmp_path)
    with episode.open() as workspace:
        workspace.write_file("/app/run", AT_THE_TESTS[program].encode())
        assert episode.grade(workspace).reward == 0.0


@pytest.mark.parametrize(
    "command", ["mkfifo /app/answer", "ln -s /dev/zero /app/answer", "echo 'sleep 1000' > /app/run"]
)
def test_tests_that_an_answer_holds_up_score_0_and_the_reason_is_told(tmp_path: Path, command: str) -> None:
    graded = grade_after(begin(tmp_path, timeout_s=2.0), command)
    assert (graded.reward, graded.rewards) == (0.0, {"reward": 0.0})
    assert graded.told()["why"] == "the tests took longer than 2 s"


def test_programs_that_the_tests_leave_running_hold_no_grade_up(tmp_path: Path) -> None:
    command = "echo 'sleep 1000 & sleep 1000 &' > /app/run; echo 42 > /app/answer"
    graded = grade_after(begin(tmp_path), command)
    assert (graded.reward, graded.why) == (1.0, "")


def test_a_machine_that_cannot_run_the_tests_any_more_scores_0(tmp_path: Path) -> None:
    graded = grade_after(begin(tmp_path, plan="agent"), "rm -f /usr/bin/bash /usr/bin/cat")
    assert graded.reward == 0.0
    assert "no reward" in graded.why


@pytest.mark.parametrize("plan", ["image", "agent"])
@pytest.mark.parametrize("made", ["touch /root", "ln -s /nonexistent /root"])
def test_a_file_in_place_of_the_working_directory_is_no_error(
    tmp_path: Path, plan: GradingPlan, made: str
) -> None:
    episode = begin(tmp_path, plan=plan, directory="/root")
    assert grade_after(episode, f"cd /; rm -rf /root; {made}").reward == 0.0


def test_a_machine_that_runs_out_of_descriptors_is_an_error_and_never_0(tmp_path: Path) -> None:
    """Of the process that holds the roots: with each number of them, from too few for any step to enough."""
    episode = begin(tmp_path)
    rewards: list[float] = []
    for spare in range(1, 64):
        with episode.open() as workspace:
            workspace.run("mkdir -p /app/a/b; echo 42 > /app/answer")
            process = workspace.store.process.pid
            soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
            taken = len(os.listdir(f"/proc/{process}/fd"))
            resource.prlimit(process, resource.RLIMIT_NOFILE, (taken + spare, hard))
            try:
                rewards.append(episode.grade(workspace).reward)
            except (OutOfResources, EnvironmentFailed):
                continue
            finally:
                resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))
        break
    assert spare > 1, "there were enough from the beginning"
    assert rewards == [1.0]


class SessionsOfTests:
    """Kills the init of sessions in which tests are about to run, for as long as `faults` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: int) -> None:
        self.faults = faults
        self.begun = 0
        self._execute = Workspace.execute
        monkeypatch.setattr(Workspace, "execute", lambda *words, **options: self._run(*words, **options))

    def _run(self, workspace: Workspace, command: Sequence[str], **options: Any) -> Completed:
        if not any("/tests/test.sh" in word for word in command):
            return self._execute(workspace, command, **options)
        self.begun += 1
        if self.faults:
            self.faults -= 1
            init = workspace._channel.process()
            assert init is not None
            os.kill(init, signal.SIGKILL)
        return self._execute(workspace, command, **options)


def test_tests_whose_sandbox_the_machine_ends_are_run_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = begin(tmp_path)
    sessions = SessionsOfTests(monkeypatch, faults=1)
    graded = grade_after(episode, "echo 42 > /app/answer")
    assert (graded.reward, graded.why) == (1.0, "")
    assert sessions.begun == 3, "with the answer, on the image alone, and with the answer again"


def test_a_reward_whose_reading_the_machine_ends_is_no_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode, read, reads = begin(tmp_path), Workspace.read_file, 0

    def killed_once(workspace: Workspace, path: str, *, limit: int = 2**20) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise InterruptedError(errno.EINTR, "the operation was ended by signal 9")
        return read(workspace, path, limit=limit)

    monkeypatch.setattr(Workspace, "read_file", killed_once)
    assert grade_after(episode, "echo 42 > /app/answer").reward == 1.0


def test_a_machine_that_ends_the_sandbox_of_the_tests_each_time_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = begin(tmp_path)
    SessionsOfTests(monkeypatch, faults=2)
    with pytest.raises(EnvironmentFailed, match="did not last"):
        grade_after(episode, "echo 42 > /app/answer")


def test_a_task_whose_tests_never_leave_a_reward_is_an_error_whatever_the_agent_left(tmp_path: Path) -> None:
    require_host_root()
    episode = EpisodeTask.of(load_task(make_task(tmp_path / "task", "true")), HOST)
    with pytest.raises(EnvironmentFailed, match="left no reward"):
        grade_after(episode, "mkfifo /app/answer")


def test_a_session_that_has_ended_is_graded_by_its_files(tmp_path: Path) -> None:
    begin(tmp_path)
    environment = TerminalEnvironment(policy=HOST, tasks=tmp_path)
    environment.reset(task="task")
    environment.step(BashAction("echo 42 > /app/answer"))
    assert environment._tools is not None
    init = environment._tools.workspace._channel.process()
    assert init is not None
    os.kill(init, signal.SIGKILL)
    eventually(lambda: environment._tools is None or not environment._tools.workspace.alive, "it has ended")
    submitted = environment.step(SubmitAction())
    assert (submitted.reward, submitted.done) == (1.0, True)


def test_a_fork_of_a_fork_is_graded_with_the_files_of_all_three(tmp_path: Path) -> None:
    episode = begin(tmp_path)
    with episode.open() as first:
        first.run("echo 41 > /app/answer; mkdir /opt/a; echo 'rm /opt/a/new' > /app/run; touch /opt/a/new")
        (second,) = first.fork()
    with second:
        second.run("rm -r /opt/a; echo 'test ! -e /opt/a && echo 42 > /app/answer' > /app/run")
        (third,) = second.fork()
    with third:
        third.run("echo 43 > /app/answer")
        assert episode.grade(third).reward == 1.0


def test_what_one_agent_leaves_costs_no_other_its_session(tmp_path: Path) -> None:
    episode = begin(tmp_path)
    with Workspace(HOST) as neighbour:
        for answer in ("folders nested 1,500 deep", "folders nested beyond the longest path"):
            grade_after(episode, ANSWERS[answer])
        (twin,) = neighbour.fork()
        with twin:
            assert twin.run("echo there").output == "there\n"


def test_limits_of_a_task_leave_room_for_what_its_agent_may_store(tmp_path: Path) -> None:
    episode = begin(tmp_path)
    full = "head -c 63M /dev/urandom > /app/data; echo 42 > /app/answer"
    roomy = dataclasses.replace(episode, policy=dataclasses.replace(HOST, disk_bytes=65 * 2**20))
    assert grade_after(roomy, full).reward == 1.0
