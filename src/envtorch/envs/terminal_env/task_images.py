"""Root file systems of tasks: the steps of a Dockerfile, run once on the policy's root and kept as layers."""

import dataclasses
import posixpath
import threading
from dataclasses import dataclass, field
from pathlib import Path

from envtorch.envs.terminal_env.dockerfiles import Instruction, environment_of, read_dockerfile
from envtorch.envs.terminal_env.harbor import HarborTask, archive_of
from envtorch.errors import ConfigurationError, EnvironmentFailed
from envtorch.sandbox import Policy, Workspace

__all__ = ["TaskImage", "image_for", "policy_for"]

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskImage:
    """A built image: its layers, the topmost first, and how programs are started on it."""

    layers: tuple[str, ...]
    directory: str
    environment: dict[str, str] = field(default_factory=dict)


_lock = threading.Lock()
_images: dict[tuple[int, str], TaskImage] = {}


def policy_for(task: HarborTask, policy: Policy) -> Policy:
    """The policy of an episode: the task's own limits, never above the server's."""
    wanted = task.file.environment
    memory = policy.memory_bytes if wanted.memory_mb is None else wanted.memory_mb * MEGABYTE
    disk = policy.disk_bytes if wanted.storage_mb is None else wanted.storage_mb * MEGABYTE
    return dataclasses.replace(
        policy,
        memory_bytes=min(policy.memory_bytes, memory),
        disk_bytes=min(policy.disk_bytes, disk),
    )


def image_for(task: HarborTask, policy: Policy) -> TaskImage:
    """The image of a task on the policy's root, built when first needed and kept for this process.

    The FROM of a Dockerfile is not fetched: its steps run on the root that the policy names.
    """
    from envtorch.sandbox.root_stores import root_store_for

    assert policy.root is not None
    key = id(root_store_for(policy.root)), task.digest
    with _lock:  # two sessions of one task build it once
        if key not in _images:
            _images[key] = _build(task, policy)
        return _images[key]


def _build(task: HarborTask, policy: Policy) -> TaskImage:
    wanted = task.file.environment
    roomy = dataclasses.replace(policy, timeout_s=wanted.build_timeout_sec)
    builder = _Builder(task, Workspace(roomy, directory="/"))
    try:
        if task.dockerfile is not None:
            for instruction in read_dockerfile(task.dockerfile.read_text(), str(task.dockerfile)):
                builder.follow(instruction)
        if wanted.workdir is not None:
            builder.enter(wanted.workdir)
        builder.environment |= wanted.env
        layers = builder.workspace.stack()
    except BaseException:
        builder.workspace.close()
        raise
    builder.workspace.close(keep_layers=True)
    return TaskImage(tuple(layers), builder.directory, builder.environment)


class _Builder:
    """Follows a Dockerfile in a workspace."""

    def __init__(self, task: HarborTask, workspace: Workspace) -> None:
        self._task = task
        self.workspace = workspace
        self.environment: dict[str, str] = {}
        self.directory = "/"
        self._arguments: dict[str, str] = {}

    def follow(self, instruction: Instruction) -> None:
        match instruction.name:
            case "RUN":
                self._run(instruction)
            case "COPY" | "ADD":
                self._copy(instruction)
            case "ENV":
                self.environment |= environment_of(instruction)
            case "ARG":
                self._arguments |= environment_of(instruction)
            case "WORKDIR":
                self.enter(instruction.words[0])

    def enter(self, directory: str) -> None:
        self.directory = posixpath.normpath(posixpath.join(self.directory, directory))
        self._must(["mkdir", "-p", self.directory], f"WORKDIR {directory}")

    def _run(self, instruction: Instruction) -> None:
        command = instruction.words[0]
        self._must(["/bin/bash", "-c", f"set -e\n{command}"], f"line {instruction.line}: RUN {command[:80]}")

    def _copy(self, instruction: Instruction) -> None:
        *sources, destination = instruction.words
        target = posixpath.join(self.directory, destination)
        files: dict[str, Path] = {}
        for source in sources:
            for path in self._found(source, instruction.line):
                is_inside = destination.endswith(("/", ".")) or len(sources) > 1
                inside = posixpath.join(target, path.name) if is_inside and path.is_file() else target
                files[posixpath.normpath(inside)] = path
        what = f"line {instruction.line}: COPY"
        self._must(["tar", "-x", "-f", "-", "-C", "/"], what, stdin=archive_of(files))

    def _found(self, source: str, line: int) -> list[Path]:
        context = self._task.folder / "environment"
        where = f"{self._task.dockerfile}, line {line}"
        pattern = source.lstrip("/") or "."
        found = [context] if pattern in (".", "./") else sorted(context.glob(pattern))
        if not found:
            raise ConfigurationError(f"{where}: there is no {source} in {context}")
        for path in found:
            if not path.resolve().is_relative_to(context.resolve()):
                raise ConfigurationError(f"{where}: {source} is outside of {context}")
        return found

    def _must(self, command: list[str], what: str, *, stdin: bytes = b"") -> None:
        done = self.workspace.execute(
            command,
            stdin=stdin,
            environment={"DEBIAN_FRONTEND": "noninteractive", **self._arguments, **self.environment},
            directory=self.directory if what.startswith("line") else "/",
        )
        if not done.ok:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-500:]
            raise EnvironmentFailed(
                f"the environment of {self._task.name} could not be built, {what}: {done.outcome.value}, "
                f"status {done.exit_status}: {said}"
            )
