"""The owner's side of the proxy through which sessions reach allowed hosts: one process for all of them."""

import atexit
import dataclasses
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from envtorch.errors import EnvironmentFailed

from . import protocol
from .egress.proxy_limits import ProxyLimits
from .policy import Policy

__all__ = ["PROXY_PORT", "NetworkLog", "ProxiedRequest", "ProxyProcess", "proxy_process", "proxy_variables"]

logger = logging.getLogger(__name__)

PROXY_PORT = 3128
"""On the loopback of each session with an allow-list."""
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from egress.allow_list_proxy import main; "
    "main(int(sys.argv[2]))"
)
_REPLY_S = 60.0
_MOST_REPLY = 1 << 18


class ProxiedRequest(msgspec.Struct, frozen=True):
    """One connection of a session to the proxy. Method, host and port are what the session said."""

    began: float
    """In seconds since 1970."""
    method: str = ""
    host: str = ""
    port: int = 0
    allowed: bool = False
    reason: str = ""
    """Why it was refused, or how it failed."""
    sent: int = 0
    received: int = 0


class NetworkLog(msgspec.Struct, frozen=True):
    """What a session asked the proxy for: the last 100 requests, and counts of all."""

    count: int = 0
    refused: int = 0
    used: int = 0
    """Bytes, both ways together."""
    requests: list[ProxiedRequest] = []


def proxy_variables(policy: Policy) -> dict[str, str]:
    """What programs inside are told about the proxy; nothing for a policy without network."""
    if not policy.network:
        return {}
    address = f"http://127.0.0.1:{PROXY_PORT}"
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    local = dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
    return dict.fromkeys(names, address) | local


class ProxyProcess:
    """The process, and the socket it is told about sessions on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_REPLY_S)
        with far, tempfile.TemporaryFile() as diagnosis:
            folder = str(Path(__file__).parent)
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", "-B", "-c", _START, folder, str(far.fileno())],
                pass_fds=[far.fileno()],
                env={},
                stdin=subprocess.DEVNULL,
                stdout=diagnosis,
                stderr=diagnosis,
                start_new_session=True,
            )
            far.close()
            try:
                self._receive()
            except OSError as error:
                self.close()
                diagnosis.seek(0)
                said = diagnosis.read().decode(errors="replace").strip()
                raise EnvironmentFailed(f"the network proxy could not be started: {error} {said}") from error

    def open(self, session: str, listener: int, policy: Policy, **limits: float) -> None:
        """Serve a session: accept on the socket that was made in its network namespace."""
        allowed = ProxyLimits(network_bytes=policy.network_bytes, **limits)  # type: ignore[arg-type]
        request = {"op": "open", "allowed": list(policy.network), "limits": dataclasses.asdict(allowed)}
        self._ask(session, request, [listener])

    def log(self, session: str) -> NetworkLog:
        return self._ask(session, {"op": "log"})

    def close_session(self, session: str) -> None:
        """End a session's connections, and write down what it asked for."""
        log = self._ask(session, {"op": "close"})
        for request in log.requests:
            logger.debug("%s: %s", session, request)
        logger.info(
            "%s made %d requests to the network, %d were refused, %d bytes were moved",
            *(session, log.count, log.refused, log.used),
        )

    def _ask(self, session: str, request: dict[str, Any], descriptors: Sequence[int] = ()) -> NetworkLog:
        with self._lock:
            try:
                data = protocol.encode({**request, "session": session})
                socket.send_fds(self._channel, [data], list(descriptors))
                return msgspec.json.decode(self._receive(), type=NetworkLog)
            except (OSError, msgspec.DecodeError) as error:
                raise EnvironmentFailed(f"the network proxy has gone: {error}") from error

    def _receive(self) -> bytes:
        data = self._channel.recv(_MOST_REPLY)
        if not data:
            raise OSError("it ended")
        return data

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def disown(self) -> None:
        """In a forked child of the owner: close its copy of the channel, and leave the process alone."""
        self.process.returncode = 0
        self._channel.close()

    def close(self) -> None:
        """End the process, and with it every connection."""
        self._channel.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_lock = threading.Lock()
_processes: dict[int, ProxyProcess] = {}


def proxy_process() -> ProxyProcess:
    """The living proxy of this process, started or replaced if need be."""
    with _lock:
        found = _processes.get(os.getpid())
        if found is None or not found.is_alive():
            if found is not None:
                logger.warning(
                    "the network proxy died and is replaced; sessions of the old one have no network"
                )
                found.close()
            found = _processes[os.getpid()] = ProxyProcess()
        return found


def close_proxy() -> None:
    """End the proxy of this process. Runs by itself at exit."""
    with _lock:
        found = _processes.pop(os.getpid(), None)
    if found is not None:
        found.close()


atexit.register(close_proxy)


def _disown_all() -> None:
    global _lock
    _lock = threading.Lock()
    for found in _processes.values():
        found.disown()
    _processes.clear()


os.register_at_fork(after_in_child=_disown_all)
