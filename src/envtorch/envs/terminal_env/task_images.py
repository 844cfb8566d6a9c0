"""Root file systems of tasks: a root that an engine has built, or the steps of a Dockerfile, run once."""

import dataclasses
import io
import os
import posixpath
import tarfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from envtorch.envs.terminal_env.dockerfiles import Instruction, base_of, environment_of, read_dockerfile
from envtorch.envs.terminal_env.harbor import HarborTask, archive_of
from envtorch.errors import ConfigurationError, EnvironmentFailed
from envtorch.sandbox import Policy, Workspace
from envtorch.sandbox.prepared_roots import PreparedRoot, RootCache, name_for_dockerfile
from envtorch.sandbox.root_stores import root_store_for
from envtorch.sandbox.session_start import DEFAULT_PATH, ROOT
from envtorch.sandbox.workspace_channel import told_as_failure

__all__ = ["TaskImage", "image_for", "policy_for"]

MEGABYTE = 1024 * 1024
_NOBODY = 65534
"""The id that tests usually take for a user without rights."""


@dataclass(frozen=True, slots=True)
class TaskImage:
    """A built image: its layers, the topmost first, and how programs are started on it."""

    layers: tuple[str, ...]
    directory: str
    environment: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    """Whom the agent's programs run as; None for root."""


@dataclass(frozen=True, slots=True)
class _Base:
    """What a task's image is made on."""

    root: str
    prepared: PreparedRoot | None = None
    is_whole: bool = False
    """An engine has followed the Dockerfile already."""


_lock = threading.Lock()
_images: dict[tuple[int, str, str], TaskImage] = {}


def policy_for(task: HarborTask, policy: Policy) -> Policy:
    """The policy of an episode: the task's own limits, never above the server's."""
    wanted = task.file.environment
    memory = policy.memory_bytes if wanted.memory_mb is None else wanted.memory_mb * MEGABYTE
    disk = policy.disk_bytes if wanted.storage_mb is None else wanted.storage_mb * MEGABYTE
    return dataclasses.replace(
        policy,
        memory_bytes=min(policy.memory_bytes, memory),
        disk_bytes=min(policy.disk_bytes, disk),
        root=_base_for(task, policy).root,
    )


def _base_for(task: HarborTask, policy: Policy) -> _Base:
    """The root that a task is built on: the first of these that is there.

    Prepared from its Dockerfile, or from the image that `task.toml` names; prepared under the name that the
    Dockerfile starts FROM; the policy's own.
    """
    assert policy.root is not None
    cache = RootCache()
    whole = [task.file.environment.docker_image]
    start = None
    if task.dockerfile is not None:
        whole.insert(0, name_for_dockerfile(task.dockerfile.parent))
    for name in whole:
        if name and (prepared := cache.find(name)) is not None:
            return _Base(cache.path(prepared), prepared, is_whole=True)
    if task.dockerfile is not None:
        start = base_of(task.dockerfile_text(), str(task.dockerfile))
    for name in (start, policy.root):
        if name and (prepared := cache.find(name)) is not None:
            return _Base(cache.path(prepared), prepared)
    return _Base(policy.root)


def image_for(task: HarborTask, policy: Policy) -> TaskImage:
    """The image of a task, built when first needed and kept for this process.

    The FROM of a Dockerfile is not fetched: its steps run on a prepared root of that name, or on the root
    that the policy names.
    """
    base = _base_for(task, policy)
    name = "" if base.prepared is None else base.prepared.name
    key = id(root_store_for(base.root)), name, task.digest
    with _lock:  # two sessions of one task build it once
        if key not in _images:
            _images[key] = _build(task, dataclasses.replace(policy, root=base.root), base)
        return _images[key]


def _build(task: HarborTask, policy: Policy, base: _Base) -> TaskImage:
    roomy = dataclasses.replace(policy, timeout_s=task.file.environment.build_timeout_sec)
    builder = _Builder(task, Workspace(roomy, directory="/"), base.prepared)
    try:
        with told_as_failure(f"the environment of {task.name} could not be built"):
            layers = _follow_all(task, builder, base)
    except BaseException:
        builder.workspace.close()
        raise
    builder.workspace.close(keep_layers=True)
    user = task.file.agent.user
    return TaskImage(
        tuple(layers), builder.directory, builder.environment, builder.user if user is None else str(user)
    )


def _follow_all(task: HarborTask, builder: "_Builder", base: _Base) -> list[str]:
    wanted = task.file.environment
    if task.other_users:
        _require_other_users(task, builder.workspace)
    if task.dockerfile is not None and not base.is_whole:
        text, where = task.dockerfile_text(), str(task.dockerfile)
        known = {"PATH": DEFAULT_PATH, **builder.environment}
        for instruction in read_dockerfile(text, where, environment=known):
            builder.follow(instruction)
    if wanted.workdir is not None:
        builder.enter(wanted.workdir)
    builder.environment |= wanted.env
    return builder.workspace.stack()


def _require_other_users(task: HarborTask, workspace: Workspace) -> None:
    """Raises `EnvironmentFailed` where sessions have no ids but root's: tests that cannot run a program as
    another user would find every answer wrong."""
    for kind in ("uid", "gid"):
        lines = workspace.read_file(f"/proc/self/{kind}_map").decode().splitlines()
        ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
        if not any(first <= _NOBODY < first + count for first, count in ranges):
            raise EnvironmentFailed(
                f"the tests of {task.name} run programs as another user (other_users in its task.toml), and "
                f"sessions here have no {kind} {_NOBODY}: this process belongs to an ordinary user "
                f"(uid {os.getuid()}), whose sessions have one id, root's. Run it as root; ranges of ids in "
                "/etc/subuid are not used"
            )


class _Builder:
    """Follows a Dockerfile in a workspace."""

    def __init__(self, task: HarborTask, workspace: Workspace, base: PreparedRoot | None) -> None:
        self._task = task
        self.workspace = workspace
        self.environment: dict[str, str] = {} if base is None else dict(base.environment)
        self.directory = "/" if base is None else base.directory or "/"
        self.user = None if base is None else base.user
        self._shell: tuple[str, ...] = ("/bin/sh", "-c")
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
            case "USER":
                self.user = instruction.words[0]
            case "SHELL":
                self._shell = instruction.words

    def enter(self, directory: str) -> None:
        self.directory = posixpath.normpath(posixpath.join(self.directory, directory))
        self._must(["mkdir", "-p", self.directory], f"WORKDIR {directory}")

    def _run(self, instruction: Instruction) -> None:
        """Daemons that it leaves are ended, as an engine does: an image has files and no processes."""
        words = instruction.words
        command = words if instruction.is_exec else (*self._shell, *words)
        told = " ".join(words)[:80]
        self._must(list(command), f"line {instruction.line}: RUN {told}", as_user=True)
        self.workspace.end_processes()

    def _copy(self, instruction: Instruction) -> None:
        *sources, destination = instruction.words
        target = posixpath.normpath(posixpath.join(self.directory, destination))
        is_folder = (
            len(sources) > 1
            or destination.endswith("/")
            or posixpath.basename(destination) in (".", "..")
            or self.workspace.execute(["test", "-d", target], directory="/", user=ROOT).ok
        )
        files: dict[str, Path] = {}
        for source in sources:
            for path in self._found(source, instruction.line):
                inside = posixpath.join(target, path.name) if is_folder and path.is_file() else target
                files[inside] = path
        what = f"line {instruction.line}: {instruction.name}"
        archive = archive_of(files)
        self._must(["tar", "-x", "-f", "-", "-C", "/"], what, stdin=archive)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            names = "".join(f"/{name}\0" for name in tar.getnames() if f"/{name}" != target or not is_folder)
        for program, flag in (("chown", "chown"), ("chmod", "chmod")):
            if value := instruction.flags.get(flag):
                command = ["xargs", "-0", "-r", program, *(["-h"] if program == "chown" else []), value, "--"]
                self._must(command, f"{what} --{flag}={value}", stdin=names.encode())

    def _found(self, source: str, line: int) -> list[Path]:
        context = self._task.folder / "environment"
        where = f"{self._task.dockerfile}, line {line}"
        pattern = source.lstrip("/") or "."
        found = [context] if pattern in (".", "./") else sorted(context.glob(pattern))
        if not found:
            raise ConfigurationError(f"{where}: there is no {source} in {context}: add it, or mend the line")
        for path in found:
            if not path.resolve().is_relative_to(context.resolve()):
                raise ConfigurationError(f"{where}: {source} is outside of {context}")
        return found

    def _must(self, command: list[str], what: str, *, stdin: bytes = b"", as_user: bool = False) -> None:
        done = self.workspace.execute(
            command,
            stdin=stdin,
            environment={"DEBIAN_FRONTEND": "noninteractive", **self._arguments, **self.environment},
            directory=self.directory if as_user else "/",
            user=(self.user or ROOT) if as_user else ROOT,
        )
        if not done.ok:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-500:]
            raise EnvironmentFailed(
                f"the environment of {self._task.name} could not be built, {what}: {done.outcome.value}, "
                f"status {done.exit_status}: {said}"
            )
