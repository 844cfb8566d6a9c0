"""A cloud like Daytona's on this machine: the part of its package's contract that we use, for real.

A sandbox is a directory. What it is asked to run is run by a shell, with `/tmp` and `/app` in that
directory and port 8000 at a port of its own. The cloud is found by every process, as a cloud is.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

CLOUD = Path(tempfile.gettempdir()) / f"fake-daytona-{os.getuid()}"
KEY = "a key of the fake cloud"
MARK = "FAKE_DAYTONA_SANDBOX"
"""The environment variable of everything that runs in a sandbox: its id."""


class DaytonaError(Exception): ...


class DaytonaAuthenticationError(DaytonaError): ...


class Given:
    """A bag of named values, as the package's parameter classes are."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


class DaytonaConfig(Given): ...


class ListSandboxesQuery(Given): ...


class CreateSandboxFromImageParams(Given): ...


class CreateSandboxFromSnapshotParams(Given): ...


class Image(Given):
    @staticmethod
    def from_dockerfile(path: str) -> "Image":
        return Image(text=Path(path).read_text(), directory=Path(path).parent)


class Daytona:
    def __init__(self, config: Any = None) -> None:
        self.key = getattr(config, "api_key", None)
        self.created: list[Any] = []
        if self.key is None:
            raise DaytonaError("API key or JWT token is required")

    def create(self, params: Any, *, timeout: float = 60, on_snapshot_create_logs: Any = None) -> "Sandbox":
        if self.key != KEY:
            raise DaytonaAuthenticationError("Invalid credentials")
        if getattr(params, "image", None) == "missing:1":
            raise DaytonaError("Image missing:1 not found")
        if on_snapshot_create_logs is not None:
            on_snapshot_create_logs("building")
        self.created.append(params)
        return Sandbox.make(params)

    def list(self, query: Any) -> Iterator["Sandbox"]:
        for path in CLOUD.glob("*/about.json"):
            with suppress(FileNotFoundError):  # somebody else may be deleting it
                found = Sandbox(path.parent)
                if query.labels.items() <= found.labels.items():
                    yield found

    def delete(self, sandbox: "Sandbox", timeout: float = 60, wait: bool = False) -> None:
        sandbox.delete()


class Sandbox:
    def __init__(self, directory: Path) -> None:
        self.directory, self.id = directory, directory.name
        about = json.loads((directory / "about.json").read_text())
        self.labels: dict[str, str] = about["labels"]
        self.port: int = about["port"]
        self.env: dict[str, str] = about["env_vars"]
        self.process = self

    @classmethod
    def make(cls, params: Any) -> "Sandbox":
        directory = CLOUD / uuid.uuid4().hex
        (directory / "tmp").mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        about = {"labels": params.labels, "port": port, "env_vars": getattr(params, "env_vars", {})}
        (directory / "about.json").write_text(json.dumps(about))
        return cls(directory)

    def exec(self, command: str) -> Any:
        inside = command.replace("/tmp", f"{self.directory}/tmp").replace("/app", f"{self.directory}/app")
        started = subprocess.Popen(
            ["sh", "-c", inside.replace("8000", str(self.port))],
            env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", MARK: self.id, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        said, _ = started.communicate()
        return types.SimpleNamespace(
            result=said.replace(str(self.directory), ""), exit_code=started.returncode
        )

    def create_signed_preview_url(self, port: int, expires_in_seconds: int | None = None) -> Any:
        assert port == 8000
        return types.SimpleNamespace(url=f"http://127.0.0.1:{self.port}", token="signed")

    def delete(self) -> None:
        while processes := self._processes():
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _processes(self) -> list[int]:
        """What runs in the sandbox. Their numbers are not kept: others may have them by now."""
        mark = f"{MARK}={self.id}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found


def install() -> None:
    """Be `daytona` for this process, with a key in its environment."""
    sys.modules["daytona"] = sys.modules[__name__]
    os.environ["DAYTONA_API_KEY"] = KEY
