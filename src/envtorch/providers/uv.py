"""Servers from sources: a project, or a git repository, run by uv with exactly its own dependencies."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from envtorch.errors import ConfigurationError, ProviderFailed
from envtorch.extras import missing_extra
from envtorch.providers.child import SCRIPTS, listen, start_child
from envtorch.providers.provider_base import RuntimeProvider
from envtorch.providers.provider_options import checked_environment, checked_port, read_options
from envtorch.providers.sweeper import owned_directory, sweep_directories
from envtorch.settings import inherited_environment

__all__ = ["UVOptions", "UVProvider"]

CLONE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class UVOptions:
    """The options of `UVProvider.start`."""

    python: str | None = None
    """Which Python, as `uv run --python` takes it; by default the project's own choice."""

    offline: bool = False
    """Use only what uv has in its cache."""


class UVProvider(RuntimeProvider):
    """Serves a project with `uv run`, in a virtual environment of its own.

    `project_path` is a directory with a `pyproject.toml`, or a repository: `git+https://host/name` or
    `git+https://host/name@revision`, which is cloned for as long as the server runs. The project must
    bring uvicorn. The server sees what a program needs of this process's environment variables, and
    `env_vars`; uv's own settings stay with uv.
    """

    def __init__(
        self,
        project_path: str | os.PathLike[str],
        app: str = "server.app:app",
        host: str = "127.0.0.1",
        *,
        env_vars: Mapping[str, str] | None = None,
        context_timeout_s: float = 60.0,
    ) -> None:
        super().__init__()
        self._project = os.fspath(project_path)
        self._app = app
        self._host = host
        self._env_vars = checked_environment(env_vars)
        self._uv = find_uv()
        self.context_timeout_s = context_timeout_s
        if not all(app.partition(":")):
            raise ConfigurationError(f"{app!r} names no application: write it as 'package.module:attribute'")
        if not is_repository(self._project) and not (Path(self._project) / "pyproject.toml").is_file():
            raise ConfigurationError(f"{self._project!r} is no project: it has no pyproject.toml")

    def start(
        self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **options: Any
    ) -> str:
        chosen = read_options(UVOptions, options)
        port = checked_port(port)
        variables = {"PYTHONUNBUFFERED": "1", **self._env_vars, **checked_environment(env_vars)}
        self._refuse_second()
        sweep_directories()
        listener = listen(self._host, port)  # the first thing that can fail, and the cheapest
        try:
            directory, afterwards = self._project, None
            if is_repository(self._project):
                directory = clone(self._project)
                afterwards = partial(shutil.rmtree, directory, ignore_errors=True)
            environment = {**inherited_environment("UV_*", "GIT_*"), **variables}
        except BaseException:
            listener.close()
            raise
        server = start_child(
            uv_command(self._uv, directory, self._app, chosen, hidden=_settings_of_uv(environment)),
            listener=listener,
            environment=environment,
            directory=directory,
            afterwards=afterwards,
        )
        return self._adopt(server)


def uv_command(uv: str, directory: str, app: str, chosen: UVOptions, hidden: list[str]) -> list[str]:
    """The command that serves `app` on the socket `{fd}`; `hidden` variables do not reach it."""
    return [
        *(uv, "run", "--isolated", "--no-progress", "--project", directory),
        *(("--python", chosen.python) if chosen.python else ()),
        *(("--offline",) if chosen.offline else ()),
        *("--", "env", *(part for name in hidden for part in ("-u", name))),
        *("python", str(SCRIPTS / "run_app.py"), "{fd}", app),
    ]


def _settings_of_uv(environment: Mapping[str, str]) -> list[str]:
    """Variables that are for uv and git alone: an index's address may hold a password."""
    return [name for name in environment if name.startswith(("UV_", "GIT_"))]


def is_repository(project: str) -> bool:
    return project.startswith("git+")


def clone(project: str) -> str:
    """A fresh clone of `git+URL[@revision]`, in a directory that a sweep recognises."""
    address, revision = split_revision(project.removeprefix("git+"))
    directory = owned_directory("clone")
    try:
        _git("init", "--quiet", directory, about=address)
        _git("-C", directory, "fetch", "--quiet", "--depth", "1", address, revision or "HEAD", about=address)
        _git("-C", directory, "checkout", "--quiet", "FETCH_HEAD", about=address)
        if not (Path(directory) / "pyproject.toml").is_file():
            raise ProviderFailed(f"{project} is no project: it has no pyproject.toml")
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


def split_revision(address: str) -> tuple[str, str | None]:
    """The repository and the revision in `URL[@revision]`; an `@` before the host is a user's name."""
    head, separator, last = address.rpartition("@")
    if separator and "/" in head.partition("://")[2]:
        return head, last
    return address, None


def _git(*arguments: str, about: str) -> None:
    git = shutil.which("git")
    if git is None:
        raise ProviderFailed(f"cloning {about} needs git, which is not installed")
    try:
        done = subprocess.run(  # noqa: S603
            [git, *arguments],
            capture_output=True,
            text=True,
            timeout=CLONE_TIMEOUT_S,
            check=False,
            env={**inherited_environment("GIT_*", "SSH_*"), "GIT_TERMINAL_PROMPT": "0"},
        )
    except subprocess.TimeoutExpired as error:
        raise ProviderFailed(f"cloning {about} took longer than {CLONE_TIMEOUT_S:g} s") from error
    if done.returncode:
        raise ProviderFailed(f"cloning {about} failed: {' '.join(done.stderr.split())}")


def find_uv() -> str:
    """Where uv is: on the path, or beside this Python."""
    found = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if found is None:
        raise missing_extra("uv", "UVProvider needs uv")
    return found
