"""Grades: a task's tests in a sandbox of their own, on files of the agent's that it can no longer change.

When a grade begins, every process of the agent has been ended and what it changed is frozen. The tests run
in new namespaces with a root made of layers, the topmost first:

    tests and empty log directories
    hidden: what the agent added that would hook into the verifier's programs
    the agent's changes below the declared paths
    the image, as it was
    the agent's other changes (plan "image" only): what it added is there, what it changed of the image is not

The reward is read, once every process of the tests has ended, by a process of ours and over a pipe.
"""

import dataclasses
import json
import os
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from envtorch.envs.terminal_env.harbor import GradingPlan, HarborTask, archive_of, finite
from envtorch.envs.terminal_env.hooks import find_hooks, shadowed_paths
from envtorch.envs.terminal_env.task_images import TaskImage
from envtorch.errors import EnvironmentFailed
from envtorch.sandbox import Outcome, Policy, Workspace
from envtorch.sandbox.root_stores import RootStore

__all__ = ["Grade", "grade"]

MEGABYTE = 1024 * 1024
_LAYER_BYTES = 512 * MEGABYTE
_REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
_REWARD_BYTES = 65536
_MOST_TOLD = 50
_OURS = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""Written at the start of every session."""
_START = 'cd -- "$0" 2>/dev/null; exec /bin/bash --noprofile --norc /tests/test.sh'
"""From the working directory, if the agent has left one."""
HARDENED = {
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "-c /dev/null --rootdir=/tests --confcutdir=/tests -p no:cacheprovider",
}
"""Keeps Python and pytest from running files that happen to lie in a directory."""


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

    def told(self) -> dict[str, Any]:
        """The grade as an agent's trainer may see it; what the tests wrote is left out."""
        return {
            "rewards": dict(self.rewards),
            "plan": self.plan,
            "reverted": list(self.reverted),
            "hidden": list(self.hidden),
        }


class _Change(msgspec.Struct, frozen=True):
    layer: str
    path: str
    kind: str
    opaque: bool


def grade(task: HarborTask, image: TaskImage, agent: Workspace, policy: Policy) -> Grade:
    """Grade what an agent has left. Raises `EnvironmentFailed` when the tests leave no reward."""
    plan = task.grading
    if plan == "live":
        layers, copied = agent.copy_layers()
    else:
        agent.end_processes()
        layers, copied = agent.stack(), None
    grading = _Grading(task, image, agent.store, layers[: len(layers) - len(image.layers)])
    try:
        return grading.run(policy, network_of=agent if plan == "live" else None)
    finally:
        grading.close()
        if copied is not None:
            agent.store.ask({"op": "close", "session": copied})


class _Grading:
    """The layers of one grade."""

    def __init__(self, task: HarborTask, image: TaskImage, store: RootStore, changed: Sequence[str]) -> None:
        self._task, self._image, self._store = task, image, store
        self._changed = list(changed)
        self._made: list[str] = []

    def run(self, policy: Policy, *, network_of: Workspace | None) -> Grade:
        plan = self._task.grading
        declared = [path for path in self._declared() if path != "/"]
        changes = self._changes()
        reverted: list[str] = []
        hooks: list[str] = []
        if plan == "agent":
            layers = [self._tests(()), *self._changed, *self._image.layers]
        else:
            others = [one for one in changes if not _is_below(one.path, [*declared, *_OURS])]
            others = [one for one in others if one.kind != "folder"]
            in_image = self._existing([one.path for one in others])
            reverted = sorted({one.path for one in others if one.path in in_image})
            added = sorted({one.path for one in others if one.kind != "hidden"} - in_image)
            layers = [*self._extracted(declared), *self._image.layers]
            if plan == "image":
                hooks = self._hooks(added)
                layers = [self._tests(hooks), *layers, *self._changed]
            else:
                hooks = added
                layers = [self._tests(()), *layers]
        output, rewards = self._verify(layers, policy, network_of)
        return Grade(
            _overall(rewards), rewards, plan, tuple(reverted[:_MOST_TOLD]), tuple(hooks[:_MOST_TOLD]), output
        )

    def _declared(self) -> list[str]:
        """The paths that are graded as the agent left them: artifacts, or the working directory."""
        return [posixpath.normpath(path) for path in self._task.declared_paths] or [self._image.directory]

    def _changes(self) -> list[_Change]:
        if not self._changed:
            return []
        _, given = self._store.ask({"op": "changes", "layers": self._changed})
        decoder = msgspec.json.Decoder(_Change)
        with os.fdopen(given[0], "rb") as file:
            file.seek(0)
            return [decoder.decode(line) for line in file]

    def _existing(self, paths: Sequence[str]) -> set[str]:
        """Those of some paths that the image has."""
        if not paths:
            return set()
        question = os.memfd_create("paths", os.MFD_CLOEXEC)
        try:
            os.write(question, json.dumps(list(paths)).encode())
            _, given = self._store.ask({"op": "existing", "layers": list(self._image.layers)}, [question])
        finally:
            os.close(question)
        with os.fdopen(given[0], "rb") as file:
            file.seek(0)
            return set(json.load(file))

    def _hooks(self, added: Sequence[str]) -> list[str]:
        asked = sorted({other for path in added for other in shadowed_paths(path)})
        return find_hooks(added, self._existing(asked))

    def _extracted(self, declared: Sequence[str]) -> list[str]:
        if not self._changed or not declared:
            return []
        name = self._new_name("files")
        request = {"op": "extract", "layer": name, "layers": self._changed, "paths": list(declared)}
        reply, _ = self._store.ask({**request, "disk_bytes": _LAYER_BYTES})
        return reply.layers

    def _tests(self, hidden: Sequence[str]) -> str:
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
                "disk_bytes": _LAYER_BYTES,
                "opaque": ["/tests", "/logs"],
                "hidden": list(hidden),
            }
            reply, _ = self._store.ask(request, [archive])
        finally:
            os.close(archive)
        return reply.layers[0]

    def _new_name(self, kind: str) -> str:
        name = f"{kind}-{secrets.token_hex(6)}"
        self._made.append(name)
        return name

    def _verify(
        self, layers: Sequence[str], policy: Policy, network_of: Workspace | None
    ) -> tuple[str, dict[str, float]]:
        verifier = self._task.file.verifier
        roomy = dataclasses.replace(policy, timeout_s=verifier.timeout_sec)
        environment = {**self._image.environment, **HARDENED, **verifier.env}
        with Workspace(
            roomy, environment=environment, directory="/", layers=layers, network_of=network_of
        ) as tests:
            command = ["/bin/bash", "--noprofile", "--norc", "-c", _START, self._image.directory]
            done = tests.execute(command, timeout_s=verifier.timeout_sec)
            tests.end_processes()
            output = (done.stdout + done.stderr).decode(errors="replace")
            if done.outcome is Outcome.TIMED_OUT:
                raise self._no_reward(f"the tests took longer than {verifier.timeout_sec:g} s", output)
            return output, self._read_rewards(tests, output)

    def _read_rewards(self, tests: Workspace, output: str) -> dict[str, float]:
        for path in _REWARDS:
            try:
                text = tests.read_file(path, limit=_REWARD_BYTES).decode().strip()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise self._no_reward(f"{path} cannot be read: {error}", output) from error
            try:
                said = json.loads(text)
                rewards = said if isinstance(said, dict) else {"reward": said}
                return {str(name): finite(value) for name, value in rewards.items()}
            except (ValueError, RecursionError) as error:
                raise self._no_reward(f"{path} holds no reward: {error}", output) from error
        raise self._no_reward("the tests left no reward in /logs/verifier", output)

    def _no_reward(self, why: str, output: str) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self._task.name} could not be graded: {why}", output=output[-2000:])

    def close(self) -> None:
        for name in self._made:
            self._store.ask({"op": "close", "session": name})


def _overall(rewards: Mapping[str, float]) -> float:
    """The reward called so, else the mean of all."""
    if not rewards:
        raise EnvironmentFailed("the tests left an empty list of rewards")
    return rewards.get("reward", sum(rewards.values()) / len(rewards))


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
