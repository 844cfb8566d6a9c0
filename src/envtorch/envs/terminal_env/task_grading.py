"""Grades: a task's tests in a sandbox of their own, on files of the agent's that it can no longer change.

When a grade begins, every process of the agent has been ended. The tests run in new namespaces with a root
made of layers, the topmost first:

    tests and empty log directories
    of the agent's changes, those that `graded_paths` selects
    the image, as it was

The reward is read, once every process of the tests has ended, by a process of ours and over a pipe. Tests
that leave none are run again on the image alone: if that gives a reward, it is what the agent left that kept
them from it, and the grade is 0; else it is an error. What fails before the tests have begun, and a sandbox
that does not last as long as they do, may be a passing fault of the machine: then the agent's files are tried
once more, and the grade is 0 if they fail again.
"""

import dataclasses
import errno
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from envtorch.envs.terminal_env.graded_paths import closed_folders, declared_paths, open_folders
from envtorch.envs.terminal_env.harbor import GradingPlan, HarborTask, archive_of, finite
from envtorch.envs.terminal_env.task_images import TaskImage
from envtorch.errors import EnvironmentFailed, OutOfResources, SessionLost, TimedOut
from envtorch.sandbox import Outcome, Policy, Workspace
from envtorch.sandbox.root_stores import RootStore

__all__ = ["Grade", "grade"]

MEGABYTE = 1024 * 1024
_TESTS_BYTES = 512 * MEGABYTE
_REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
_REWARD_BYTES = 65536
_MOST_TOLD = 50
_PATHS_ADVISED = 5
_START = 'cd -- "$0" 2>/dev/null; exec /bin/bash --noprofile --norc /tests/test.sh'
"""From the working directory, if the agent has left one."""
HARDENED = {
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "-c /dev/null --rootdir=/tests --confcutdir=/tests -p no:cacheprovider",
}
"""Keeps Python and pytest from running files that happen to lie in a directory. Plugins of pytest that are
installed work: where they are looked for, all is as it was in the image."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What the tests said, and what was done to the agent's files before."""

    reward: float
    rewards: Mapping[str, float]
    plan: GradingPlan
    reverted: tuple[str, ...]
    """Paths of the image that the agent had changed or removed, and that the tests saw as they were."""
    hidden: tuple[str, ...]
    """Paths that the agent had added, and that the tests did not see."""
    output: str
    """What the tests wrote, the head and the tail of it. It may hold what the agent's programs printed."""
    why: str = ""
    """Why what the agent left could not be graded, and scores 0; empty when the tests gave the reward."""

    def told(self) -> dict[str, Any]:
        """The grade as an agent's trainer may see it; what the tests wrote is left out."""
        return {
            "rewards": dict(self.rewards),
            "plan": self.plan,
            "reverted": list(self.reverted),
            "hidden": list(self.hidden),
            "why": self.why,
            "advice": self.advice,
        }

    @property
    def advice(self) -> str:
        """What to write where the tests need what they did not see; empty when they saw everything."""
        paths = [*self.hidden, *self.reverted]
        if not paths:
            return ""
        named = ", ".join(paths[:_PATHS_ADVISED]) + (", ..." if len(paths) > _PATHS_ADVISED else "")
        return (
            f"The tests did not see what was made of {named}. If they need it, write into task.toml "
            "`artifacts = [...]` with these and all other paths that are graded, or, for work whose "
            'result is the machine itself, `[metadata.envtorch]` and `grading = "agent"`. '
            "For tasks that you do not want to edit: `envtorch check TASKS --grading agent`, and "
            '`TerminalEnvironment(tasks=..., grading="agent")`'
        )


class _LeftOut(msgspec.Struct, frozen=True):
    """What of the agent's changes the tests do not see."""

    reverted: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


class _NoReward(Exception):
    """The tests left no reward that can be read, for a reason that may be the agent's files."""

    def __init__(self, why: str, output: str = "", *, may_pass: bool = False) -> None:
        super().__init__(why)
        self.output = output
        self.may_pass = may_pass
        """It may be a passing fault of the machine, so that another try is worth its time."""


def grade(task: HarborTask, image: TaskImage, agent: Workspace, policy: Policy) -> Grade:
    """Grade what an agent has left; its session cannot be used afterwards. Raises `EnvironmentFailed` when
    the tests leave no reward, and would leave none on the image alone."""
    grading = _Grading(task, image, agent.store, policy)
    try:
        return grading.run(agent)
    except _NoReward as cause:
        if (fault := grading.fault_of_task()) is not None:
            why = f"{task.name} could not be graded: {fault}"
            raise EnvironmentFailed(why, output=fault.output[-2000:]) from cause
        if not cause.may_pass:
            return grading.zero(cause)
        try:
            return grading.run(agent)
        except _NoReward as again:
            return grading.zero(again)
    finally:
        grading.close()


class _Grading:
    """The layers of one grade."""

    def __init__(self, task: HarborTask, image: TaskImage, store: RootStore, policy: Policy) -> None:
        self._task, self._image, self._store = task, image, store
        verifier = task.file.verifier
        self._policy = dataclasses.replace(policy, timeout_s=verifier.timeout_sec)
        self._environment = {**image.environment, **HARDENED, **verifier.env}
        self._made: list[str] = []
        self.left_out = _LeftOut()

    def run(self, agent: Workspace) -> Grade:
        """Raises `_NoReward` when no reward can be had for what the agent left."""
        plan = self._task.grading
        layers = [*self._changes_of(agent), *self._image.layers]
        output, rewards = self._verify(layers, network_of=agent if plan == "live" else None)
        left_out = self.left_out
        return Grade(_overall(rewards), rewards, plan, left_out.reverted, left_out.hidden, output)

    def zero(self, cause: _NoReward) -> Grade:
        """The grade of what cannot be graded for a reason that the agent's files are."""
        left_out = self.left_out
        return Grade(
            0.0,
            {"reward": 0.0},
            self._task.grading,
            left_out.reverted,
            left_out.hidden,
            cause.output,
            str(cause),
        )

    def fault_of_task(self) -> _NoReward | None:
        """Why the tests leave no reward where no agent has been; None when they do leave one."""
        try:
            self._verify(self._image.layers, network_of=None)
        except _NoReward as fault:
            return fault
        return None

    def _changes_of(self, agent: Workspace) -> list[str]:
        """Layers with the agent's changes, as far as the tests see them. Raises `OutOfResources` where the
        machine runs out of something; the disk that is full is the agent's."""
        try:
            if self._task.grading == "live":
                layers, copied = agent.copy_layers()
                self._made.append(copied)
            else:
                layers = agent.finish()
            changed = layers[: len(layers) - len(self._image.layers)]
            return changed if self._task.grading == "agent" else self._extracted(changed)
        except OutOfResources as error:
            if error.details.get("errno") != errno.ENOSPC:
                raise
            raise _NoReward(f"what the agent left cannot be copied: {error}", may_pass=True) from error
        except (EnvironmentFailed, SessionLost, OSError) as error:
            why = f"what the agent left running cannot be stopped: {error}"
            raise _NoReward(why, may_pass=True) from error

    def _extracted(self, changed: Sequence[str]) -> list[str]:
        request = {
            "op": "extract",
            "layer": self._new_name("files"),
            "layers": changed,
            "image": self._image.layers,
            "kept": declared_paths(self._task, self._image),
            "open": open_folders(self._task),
            "closed": closed_folders(self._environment),
            "disk_bytes": self._policy.disk_bytes * len({layer.split("/")[0] for layer in changed}),
        }
        reply, given = self._store.ask(request)
        with os.fdopen(given[0], "rb") as file:
            file.seek(0)
            told = msgspec.json.decode(file.read(), type=_LeftOut)
        self.left_out = _LeftOut(told.reverted[:_MOST_TOLD], told.hidden[:_MOST_TOLD])
        return reply.layers

    def _tests(self) -> str:
        name = self._new_name("tests")
        logs = ("/logs", "/logs/verifier", "/logs/agent", "/logs/artifacts")
        archive = os.memfd_create("tests", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(archive), "wb") as file:
                file.write(archive_of({"/tests": self._task.folder / "tests"}, folders=logs))
            os.lseek(archive, 0, os.SEEK_SET)
            request = {
                "op": "layer",
                "layer": name,
                "disk_bytes": _TESTS_BYTES,
                "opaque": ["/tests", "/logs"],
            }
            reply, _ = self._store.ask(request, [archive])
        finally:
            os.close(archive)
        return reply.layers[0]

    def _new_name(self, kind: str) -> str:
        name = f"{kind}-{secrets.token_hex(6)}"
        self._made.append(name)
        return name

    def _verify(self, layers: Sequence[str], *, network_of: Workspace | None) -> tuple[str, dict[str, float]]:
        with self._sandbox([self._tests(), *layers], network_of) as tests:
            try:
                return self._reward_in(tests)
            except (EnvironmentFailed, OutOfResources, SessionLost, TimedOut, OSError) as error:
                raise _NoReward(f"the sandbox of the tests did not last: {error}", may_pass=True) from error

    def _sandbox(self, layers: Sequence[str], network_of: Workspace | None) -> Workspace:
        """Raises `_NoReward` where files in the way of ours may be why there can be none, and
        `OutOfResources` where the machine has no room for one."""
        try:
            return Workspace(
                self._policy,
                environment=self._environment,
                directory="/",
                layers=layers,
                network_of=network_of,
            )
        except (EnvironmentFailed, SessionLost, OSError) as error:
            why = f"the sandbox of the tests could not be made: {error}"
            raise _NoReward(why, may_pass=True) from error

    def _reward_in(self, tests: Workspace) -> tuple[str, dict[str, float]]:
        command = ["/bin/bash", "--noprofile", "--norc", "-c", _START, self._image.directory]
        done = tests.execute(command, timeout_s=self._policy.timeout_s)
        tests.end_processes()
        output = (done.stdout + done.stderr).decode(errors="replace")
        if done.outcome is Outcome.TIMED_OUT:
            raise _NoReward(f"the tests took longer than {self._policy.timeout_s:g} s", output)
        for path in _REWARDS:
            try:
                text = tests.read_file(path, limit=_REWARD_BYTES).decode().strip()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                was_killed = isinstance(error, InterruptedError)
                raise _NoReward(f"{path} cannot be read: {error}", output, may_pass=was_killed) from error
            try:
                return output, _rewards_of(text)
            except (ValueError, RecursionError) as error:
                raise _NoReward(f"{path} holds no reward: {error}", output) from error
        raise _NoReward("the tests left no reward in /logs/verifier", output)

    def close(self) -> None:
        for name in self._made:
            self._store.ask({"op": "close", "session": name})


def _rewards_of(text: str) -> dict[str, float]:
    """Rewards by name. Raises `ValueError` for what is none."""
    said = json.loads(text)
    rewards = said if isinstance(said, dict) else {"reward": said}
    if not rewards:
        raise ValueError("it is empty")
    found = {str(name): finite(value) for name, value in rewards.items()}
    _overall(found)  # a mean that is not finite is no reward either
    return found


def _overall(rewards: Mapping[str, float]) -> float:
    """The reward called so, else the mean of all. Raises `ValueError` when that is not finite."""
    return rewards["reward"] if "reward" in rewards else finite(sum(rewards.values()) / len(rewards))
