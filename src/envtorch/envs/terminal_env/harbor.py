"""Tasks in Harbor's format: a directory with `task.toml`, `instruction.md`, `environment/`, `tests/` and
`solution/`."""

import contextlib
import hashlib
import io
import math
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from envtorch.envs.terminal_env.task_keys import misspelt_keys
from envtorch.errors import ConfigurationError

__all__ = ["BUNDLED", "GRADING_PLANS", "GradingPlan", "HarborTask", "archive_of", "find_tasks", "load_task"]

BUNDLED = Path(__file__).parent / "tasks"
"""The tasks that come with EnvTorch."""

GradingPlan = Literal["image", "artifacts", "live", "agent"]
"""What a task is graded on: see `docs/guides/terminal-tasks.md`."""

GRADING_PLANS: tuple[GradingPlan, ...] = get_args(GradingPlan)

_MEGABYTE = 1024 * 1024
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)  # fields of newer versions, and of other runners


class _Environment(_Part):
    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    env: dict[str, str] = Field(default_factory=dict)
    workdir: str | None = None
    os: str = "linux"

    @field_validator("memory_mb", "storage_mb", mode="before")
    @classmethod
    def _megabytes(cls, value: Any) -> Any:
        """Older files say "2G"."""
        if isinstance(value, str) and value[:-1].isdigit() and value[-1].upper() in _UNITS:
            return max(1, int(int(value[:-1]) * _UNITS[value[-1].upper()]))
        return value


class _Agent(_Part):
    timeout_sec: float | None = None
    user: str | int | None = None


class _Verifier(_Part):
    timeout_sec: float = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: Literal["shared", "separate"] = "shared"


class _Solution(_Part):
    env: dict[str, str] = Field(default_factory=dict)


class _Artifact(_Part):
    source: str


class _Own(_Part):
    """`[metadata.envtorch]`: what Harbor has no field for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grading: GradingPlan | None = None
    other_users: bool = False


class _File(_Part):
    environment: _Environment = _Environment()
    agent: _Agent = _Agent()
    verifier: _Verifier = _Verifier()
    solution: _Solution = _Solution()
    artifacts: list[str | _Artifact] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)
    steps: list[Any] = Field(default_factory=list)


class HarborTask(BaseModel):
    """One task, read and checked."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    name: str
    folder: Path
    instruction: str
    file: _File
    grading: GradingPlan
    other_users: bool = False
    """The tests run programs as users other than root."""
    digest: str
    """Of everything in the directory: the same task has the same one anywhere."""
    misspelt_keys: tuple[str, ...] = ()
    """A sentence for each key of `task.toml` that looks misspelt. The task can be played all the same."""

    @property
    def dockerfile(self) -> Path | None:
        path = self.folder / "environment" / "Dockerfile"
        return path if path.is_file() else None

    def dockerfile_text(self) -> str:
        """Raises `ConfigurationError` where it is no text, and `OSError` where it cannot be read."""
        assert self.dockerfile is not None
        try:
            return self.dockerfile.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{self.dockerfile} is no UTF-8: {error}: save it as such") from error

    @property
    def declared_paths(self) -> list[str]:
        """The artifacts that the task declares."""
        return [one if isinstance(one, str) else one.source for one in self.file.artifacts]

    @property
    def has_solution(self) -> bool:
        return (self.folder / "solution" / "solve.sh").is_file()


def load_task(folder: Path, *, name: str | None = None, grading: GradingPlan | None = None) -> HarborTask:
    """Read a task. `grading` is the plan of a task that chooses none, in place of `image`. Raises
    `ConfigurationError` that names the file and what is wrong with it."""
    path = folder / "task.toml"
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
        given = _File.model_validate(written)
        own = _Own.model_validate(given.metadata.get("envtorch", {}))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename or path}: {error.strerror}: this is no task") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{folder}: task.toml or instruction.md is no UTF-8: {error}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}: mend that line") from error
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise ConfigurationError(f"{path}: {place}: {found['msg']}") from error
    if not (folder / "tests" / "test.sh").is_file():
        raise ConfigurationError(f"{folder} has no tests/test.sh: a task without tests cannot be graded")
    _refuse_unsupported(path, given)
    separate = given.verifier.environment_mode == "separate"
    chosen = own.grading or ("artifacts" if separate or given.artifacts else grading)
    return HarborTask(
        name=name or folder.name,
        folder=folder,
        instruction=instruction,
        file=given,
        grading=chosen or "image",
        other_users=own.other_users,
        digest=_digest(folder),
        misspelt_keys=tuple(misspelt_keys(written)),
    )


def _refuse_unsupported(path: Path, given: _File) -> None:
    if given.steps:
        raise ConfigurationError(f"{path}: tasks of several steps ([[steps]]) are not supported")
    if given.environment.os != "linux":
        raise ConfigurationError(
            f"{path}: the environment is for {given.environment.os}, and only linux works"
        )
    for variables in (given.environment.env, given.verifier.env, given.solution.env):
        if taken := [name for name, value in variables.items() if "${" in value]:
            raise ConfigurationError(
                f"{path}: {taken[0]} is to be taken from the host's environment, which no task may read: "
                "write the value itself"
            )


def find_tasks(folder: Path) -> list[Path]:
    """The tasks in a directory, in order: itself, or those below it."""
    if (folder / "task.toml").is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/task.toml"))


def archive_of(files: Mapping[str, Path], *, folders: Sequence[str] = ()) -> bytes:
    """A tar archive of some files and directories of ours, each at the path it is to have, owned by root."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for folder in folders:
            member = tarfile.TarInfo(folder.lstrip("/"))
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for place, source in files.items():
            tar.add(source, arcname=place.lstrip("/"), filter=_owned_by_root)
    return made.getvalue()


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    if member.name == "tests":
        member.mode = 0o700  # programs of the agent's that the tests run as another user cannot read them
    return member


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in _files(folder):
        found.update(f"{path.relative_to(folder)}\0{path.stat().st_mode & 0o111}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def finite(value: Any) -> float:
    """A reward as a number. Raises `ValueError` for what is none."""
    with contextlib.suppress(OverflowError):  # an integer that no float can hold
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise ValueError(f"{value!r} is no finite number")
