"""A server that is a child process: started under a warden, on a socket its owner bound."""

import errno
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO

from envtorch.errors import ConfigurationError, PortTaken
from envtorch.providers.provider_base import Phase, Status

__all__ = ["ChildServer", "listen", "start_child", "under_warden"]

SCRIPTS = Path(__file__).parent / "scripts"
GRACE_S = 3.0
"""How long a server may take to end after it was asked to."""

KEPT_LINES = 1000


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that already listens: whoever connects early waits in its queue, and nobody else gets it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port or 0))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise PortTaken(f"port {port} on {host} cannot be had: {error.strerror}") from error
        raise ConfigurationError(f"cannot listen on {host}: {error.strerror or error}") from error
    return listener


def start_child(
    command: Sequence[str],
    *,
    listener: socket.socket,
    environment: Mapping[str, str],
    directory: str | os.PathLike[str] | None = None,
    afterwards: Callable[[], None] | None = None,
) -> "ChildServer":
    """Run `command`, which serves on `listener`. The listener is closed here, whatever happens.

    `{fd}` in an argument stands for the number of the listening socket. `afterwards` is called when the
    server was stopped.
    """
    with closing(listener):
        host, port = listener.getsockname()[:2]
        told = [part.replace("{fd}", str(listener.fileno())) for part in command]
        process = subprocess.Popen(  # noqa: S603
            under_warden(told, grace_s=GRACE_S),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
    shown = f"[{host}]" if ":" in host else host
    return ChildServer(process, f"http://{shown}:{port}", afterwards)


def under_warden(command: Sequence[str], *, grace_s: float) -> list[str]:
    """The command line of a warden that runs `command`, and ends it and all below it with this process."""
    warden = [sys.executable, "-I", "-S", str(SCRIPTS / "warden.py")]
    return [*warden, str(os.getpid()), str(grace_s), "--", *command]


class ChildServer:
    """A running child: its address, its life, what it wrote."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        base_url: str,
        afterwards: Callable[[], None] | None = None,
    ) -> None:
        self.base_url = base_url
        self._afterwards = afterwards
        self._process = process
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._stopping = threading.Lock()
        self._stopped = False
        assert process.stdout is not None
        # A pipe nobody reads would block the server once it is full.
        self._reader = threading.Thread(
            target=_keep_lines, args=(process.stdout, self._lines), name="envtorch-logs", daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        """The warden's process, whose end is the end of everything below it."""
        return self._process.pid

    def status(self) -> Status:
        if self._stopped:
            return Status(Phase.ABSENT)
        code = self._process.poll()
        if code is None:
            return Status(Phase.RUNNING)
        return Status(Phase.EXITED, exit_code=code)

    def logs(self, tail: int) -> str:
        if self._process.poll() is not None:
            self._reader.join(GRACE_S)  # what it wrote last may still be in the pipe
        return "\n".join(list(self._lines)[-tail:])

    def stop(self) -> None:
        with self._stopping:
            if self._stopped:
                return
            self._process.terminate()
            try:
                self._process.wait(3 * GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its command dies of the parent-death signal
                self._process.wait()
            self._reader.join(GRACE_S)
            self._stopped = True
            if self._afterwards is not None:
                self._afterwards()


def _keep_lines(stream: IO[bytes], lines: deque[str]) -> None:
    with stream:
        for line in stream:
            lines.append(line.decode(errors="replace").rstrip("\r\n"))
