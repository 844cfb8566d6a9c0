"""`GitServerClient`: repositories of a Gitea server, cloned to a workspace and put back for each task."""

import base64
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from envtorch.settings import inherited_environment

__all__ = ["GitServerClient", "RepoInfo"]

PAUSE_S = 0.25


@dataclass
class RepoInfo:
    """A repository, and where it is cloned from."""

    name: str
    url: str
    commit: str
    clone_url: str


class GitServerClient:
    """One user's repositories on a server that many tasks share.

    The credentials reach git through its environment, for this server's address alone: no file is
    written, and the user's own configuration is neither read nor changed.
    """

    def __init__(
        self, gitea_url: str, username: str, password: str, workspace_dir: str = "/workspace"
    ) -> None:
        self.gitea_url = gitea_url.rstrip("/")
        self.username = username
        self.password = password
        self.workspace_dir = Path(workspace_dir)
        self.is_ready = False
        self.workspace_dir.mkdir(parents=True, exist_ok=True)
        self._git_env = inherited_environment() | _configuration(self.gitea_url, username, password)

    def wait_for_ready(self, timeout: float = 30) -> bool:
        """Whether the server answers within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self.is_ready and time.monotonic() < deadline:
            try:
                self.is_ready = httpx.get(self.gitea_url, timeout=5, follow_redirects=True).is_success
            except httpx.HTTPError:
                self.is_ready = False
            if not self.is_ready:
                time.sleep(min(PAUSE_S, max(deadline - time.monotonic(), 0)))
        return self.is_ready

    def list_repositories(self) -> list[dict[str, str]]:
        """The user's repositories: name, full_name, clone_url, description."""
        self._require_ready()
        answer = httpx.get(
            f"{self.gitea_url}/api/v1/user/repos", auth=(self.username, self.password), timeout=30
        )
        if not answer.is_success:
            return []
        found: list[dict[str, Any]] = answer.json()
        names = ("name", "full_name", "clone_url")
        return [
            {**{name: str(repo[name]) for name in names}, "description": repo.get("description") or ""}
            for repo in found
        ]

    def clone_to_workspace(self, repo_name: str, target_dir: str | None = None, commit: str = "main") -> str:
        """Clone a repository afresh, at a commit or branch; where it is."""
        self._require_ready()
        target = self._inside(target_dir or repo_name)
        if target.exists():
            shutil.rmtree(target)
        address = f"{self.gitea_url}/{self.username}/{repo_name}.git"
        self._must("Clone", "clone", "--quiet", address, str(target), at=self.workspace_dir)
        if commit != "main":
            self._must("Checkout", "checkout", "--quiet", commit, at=target)
        return str(target)

    def reset_workspace(self, repo_name: str, commit: str = "main") -> bool:
        """Put a clone back to a commit or branch, with nothing left of what was done since."""
        place = self._cloned(repo_name, "Repository not found in workspace")
        self._git("fetch", "--quiet", "--all", at=place)  # the commit may be new; offline, it is there or not
        self._must("Checkout", "checkout", "--quiet", "--force", commit, at=place)
        remote = f"origin/{commit}"
        known = self._git("rev-parse", "--verify", "--quiet", remote, at=place).returncode == 0
        self._must("Reset", "reset", "--quiet", "--hard", remote if known else commit, at=place)
        self._must("Clean", "clean", "--quiet", "-fdx", at=place)
        return True

    def execute_git_command(self, command: str, working_dir: str = "") -> tuple[int, str, str]:
        """Run `git COMMAND` somewhere in the workspace: its code, its output, its errors."""
        try:
            place = self._inside(working_dir)
        except RuntimeError as error:
            return 1, "", str(error)
        if not place.exists():
            return 1, "", f"Working directory does not exist: {place}"
        done = self._git(*shlex.split(command), at=place)
        return done.returncode, done.stdout, done.stderr

    def get_current_commit(self, repo_name: str) -> str:
        """The commit that a clone is at."""
        place = self._cloned(repo_name, "Repository not found")
        return self._must("Asking for the commit", "rev-parse", "HEAD", at=place).strip()

    def workspace_exists(self, repo_name: str) -> bool:
        """Whether a repository was cloned."""
        return (self.workspace_dir / repo_name).exists()

    def _require_ready(self) -> None:
        if not self.is_ready:
            raise RuntimeError("Gitea server is not ready")

    def _inside(self, name: str) -> Path:
        """A place in the workspace, and never outside: names may come from an agent."""
        place = (self.workspace_dir / name).resolve()
        if not place.is_relative_to(self.workspace_dir.resolve()):
            raise RuntimeError(f"{name!r} is outside of the workspace")
        return place

    def _cloned(self, repo_name: str, otherwise: str) -> Path:
        place = self._inside(repo_name)
        if not place.exists():
            raise RuntimeError(f"{otherwise}: {repo_name}")
        return place

    def _must(self, doing: str, *arguments: str, at: Path) -> str:
        done = self._git(*arguments, at=at)
        if done.returncode:
            raise RuntimeError(f"{doing} failed: {done.stderr.strip()}")
        return done.stdout

    def _git(self, *arguments: str, at: Path) -> "subprocess.CompletedProcess[str]":
        git = shutil.which("git") or "git"
        return subprocess.run(  # noqa: S603
            [git, *arguments], cwd=at, env=self._git_env, capture_output=True, text=True, check=False
        )


def _configuration(address: str, username: str, password: str) -> dict[str, str]:
    """Git's settings as variables: who commits, and the password for this one server."""
    secret = base64.b64encode(f"{username}:{password}".encode()).decode()
    settings = {
        "user.name": username,
        "user.email": f"{username}@local.env",
        "init.defaultBranch": "main",
        f"http.{address}/.extraHeader": f"Authorization: Basic {secret}",
    }
    numbered = {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for number, (name, value) in enumerate(settings.items()):
        numbered |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return numbered
