"""nginx and HAProxy, each with the configuration that `envtorch proxy-config` prints."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

import pytest
from typer.testing import CliRunner

from envtorch.cli import main
from envtorch.providers import ProcessProvider
from tests.support import eventually

ECHO = "tests.proxies.roomy_echo:app"


def replica(name: str, **env_vars: str) -> ProcessProvider:
    """A server with a name."""
    provider = ProcessProvider()
    url = provider.start_container(ECHO, env_vars={"ENVTORCH_REPLICA": name, **env_vars})
    provider.wait_for_ready(url, timeout_s=120)
    return provider


class Addressed(Protocol):
    """A server that a proxy can stand in front of."""

    @property
    def base_url(self) -> str | None: ...


class Served:
    """`envtorch serve`, in one process that can be paused, killed, or told to stop."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "envtorch.cli", "serve", ECHO, "--port", "0", "--finish", "600"],
            env={**os.environ, "ENVTORCH_REPLICA": name},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.base_url = self.process.stderr.readline().split(" on ")[1].split()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Proxy:
    """A proxy in front of replicas, which may change."""

    def __init__(self, kind: str, directory: Path) -> None:
        binary = shutil.which(kind) or shutil.which(f"/usr/sbin/{kind}")
        if binary is None:
            pytest.skip(f"{kind} is not installed: apt-get install {kind}")
        self._kind, self._binary, self._directory = kind, binary, directory
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._listen = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self._listen}"
        self._running: list[subprocess.Popen[bytes]] = []

    def configure(self, replicas: Mapping[str, Addressed]) -> None:
        """Start it, or let it read its configuration again: connections that it has go on."""
        named = [f"{name}={(r.base_url or '').removeprefix('http://')}" for name, r in replicas.items()]
        printed = CliRunner().invoke(main, ["proxy-config", self._kind, *named, "--listen", self._listen])
        assert printed.exit_code == 0, printed.output
        path = self._directory / f"{self._kind}.conf"
        path.write_text(printed.output)
        if self._kind == "haproxy":
            after = ["-sf", str(self._running[-1].pid)] if self._running else []
            self._start([self._binary, "-db", "-f", str(path), *after])
        elif self._running:
            self._running[-1].send_signal(signal.SIGHUP)
        else:
            own = f"daemon off; pid {self._directory}/nginx.pid; error_log stderr;"
            self._start([self._binary, "-p", str(self._directory), "-c", str(path), "-g", own])

    def _start(self, command: list[str]) -> None:
        self._running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        eventually(self._answers, f"{self._kind} answers")

    def _answers(self) -> bool:
        newest = self._running[-1]
        if newest.poll() is not None and newest.stderr is not None:
            raise AssertionError(newest.stderr.read().decode())
        host, port = self._listen.split(":")
        with suppress(OSError), socket.create_connection((host, int(port))):
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
            process.wait(60)
            if process.stderr is not None:
                process.stderr.close()
