"""The owner's side of the proxy through which sessions reach allowed hosts: one process for all of them."""

import dataclasses
import logging
import socket
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from envtorch.errors import EnvironmentFailed

from . import protocol
from .egress.proxy_limits import ProxyLimits
from .helper_processes import HelperProcess, HelperProcesses
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


class ProxyProcess(HelperProcess):
    """The process, and the socket it is told about sessions on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        with tempfile.TemporaryFile() as diagnosis:
            super().__init__(_START, diagnosis, timeout_s=_REPLY_S)
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
                socket.send_fds(self.channel, [data], list(descriptors))
                return msgspec.json.decode(self._receive(), type=NetworkLog)
            except (OSError, msgspec.DecodeError) as error:
                raise EnvironmentFailed(f"the network proxy has gone: {error}") from error

    def _receive(self) -> bytes:
        data = self.channel.recv(_MOST_REPLY)
        if not data:
            raise OSError("it ended")
        return data


_processes: HelperProcesses[ProxyProcess] = HelperProcesses()


def proxy_process() -> ProxyProcess:
    """The living proxy of this process, started or replaced if need be."""
    lost = "the network proxy died and is replaced; sessions of the old one have no network"
    return _processes.get("proxy", ProxyProcess, warning=lost)
