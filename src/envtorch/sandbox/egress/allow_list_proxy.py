"""The proxy process: accepts on sockets that were made inside of sessions, and connects for them.

Its owner hands it each session's listening socket with the session's allow-list. What it reads from sessions
is never trusted: heads are bounded and read strictly, names are resolved here and the addresses judged,
every wait has an end, and every count a limit. It ends when its owner does.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401  names are resolved there; nobody cannot import it any more
import contextlib
import ctypes
import encodings.idna  # noqa: F401  the same
import ipaddress
import json
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from .destinations import Address, AllowList
from .proxy_limits import ProxyLimits
from .request_heads import END, MOST_HEAD_BYTES, RefusedRequest, RequestHead, read_head

_CHUNK = 1 << 16
_MOST_LOOKUPS = 4
"""Names that are resolved for one session at once; asyncio has five threads for all, or more."""
_MOST_TOLD = 100
_NOBODY = 65534
_NO_NEW_PRIVILEGES = 38
_PAUSE_S = 0.1
_REASONS = {400: "Bad Request", 403: "Forbidden", 411: "Length Required", 502: "Bad Gateway"}


@dataclass(slots=True)
class ProxyRecord:
    """One request, as it is logged."""

    began: float
    method: str = ""
    host: str = ""
    port: int = 0
    allowed: bool = False
    reason: str = ""
    """Why it was refused or failed."""
    sent: int = 0
    received: int = 0


@dataclass(slots=True, eq=False)
class SessionNetwork:
    """One session: its listening socket, what it may reach, and what it has done."""

    listener: socket.socket
    allowed: AllowList
    limits: ProxyLimits
    used: int = 0
    count: int = 0
    refused: int = 0
    records: "deque[ProxyRecord]" = field(default_factory=lambda: deque(maxlen=_MOST_TOLD))
    tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    lookups: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_LOOKUPS))
    is_open: bool = True

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self.listener, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self.tasks) < self.limits.connections:
            try:
                client, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left, or the client is gone already
                loop.remove_reader(self.listener)
                loop.call_later(_PAUSE_S, self._resume)
                return
            client.setblocking(False)
            self.count += 1
            task = loop.create_task(self._serve(client))
            self.tasks.add(task)
            task.add_done_callback(self._ended)
        loop.remove_reader(self.listener)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        self._resume()

    def _resume(self) -> None:
        if self.is_open:
            self.start()

    async def _serve(self, client: socket.socket) -> None:
        record = ProxyRecord(time.time())
        self.records.append(record)
        with client:
            try:
                async with asyncio.timeout(self.limits.life_s):
                    await ProxiedConnection(self, client, record).run()
            except Exception as error:  # whatever a session sends ends its own connection and no other
                record.reason = record.reason or type(error).__name__
            if not record.allowed:
                self.refused += 1

    async def look_up(self, host: str, port: int) -> list[Address]:
        """The addresses of a name. A thread that resolves one cannot be stopped, so it counts to its end."""
        loop = asyncio.get_running_loop()
        await self.lookups.acquire()
        lookup = loop.run_in_executor(None, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
        lookup.add_done_callback(lambda _: self.lookups.release())
        found = await asyncio.shield(lookup)
        return [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]

    async def close(self) -> None:
        """End every connection. The socket inside is closed with ours."""
        self.is_open = False
        asyncio.get_running_loop().remove_reader(self.listener)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.listener.close()

    def told(self) -> dict[str, Any]:
        return {
            "event": "done",
            "count": self.count,
            "refused": self.refused,
            "used": self.used,
            "requests": [asdict(record) for record in self.records],
        }


class ProxiedConnection:
    """One connection of a session: one request, and what follows from it."""

    def __init__(self, network: SessionNetwork, client: socket.socket, record: ProxyRecord) -> None:
        self._network = network
        self._client = client
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._last = time.monotonic()

    async def run(self) -> None:
        try:
            head, rest = await self._read_request()
            self._record.method, self._record.host = head.method, str(head.host)
            self._record.port = head.port
            addresses = await self._judge(head)
            server = await self._connect(addresses, head.port)
        except RefusedRequest as error:
            await self._refuse(error)
            return
        with server:
            await self._forward(head, rest, server)

    async def _read_request(self) -> tuple[RequestHead, bytes]:
        data = b""
        try:
            async with asyncio.timeout(self._network.limits.head_s):
                while END not in data:
                    if len(data) > MOST_HEAD_BYTES:
                        raise RefusedRequest(400, "the head of the request is too long")
                    more = await self._loop.sock_recv(self._client, 4096)
                    if not more:
                        raise ConnectionResetError
                    data += more
        except TimeoutError:
            raise RefusedRequest(400, "the head of the request took too long") from None
        head, _, rest = data.partition(END)
        return read_head(head + END), rest

    async def _judge(self, head: RequestHead) -> list[Address]:
        """The addresses to try. Names are resolved once, here: what was judged is what is connected to."""
        network = self._network
        if not network.allowed.permits(head.host, head.port):
            raise RefusedRequest(
                403, f"{head.host}:{head.port} is not on the list of what this session may reach"
            )
        if network.used >= network.limits.network_bytes:
            raise RefusedRequest(
                403, f"the session has used its {network.limits.network_bytes} bytes of network"
            )
        if not isinstance(head.host, str):
            return [head.host]
        try:
            async with asyncio.timeout(network.limits.connect_s):
                addresses = await network.look_up(head.host, head.port)
        except (OSError, TimeoutError):
            raise RefusedRequest(502, f"{head.host} cannot be resolved") from None
        public = [one for one in addresses if network.allowed.permits_resolved(one, head.port)]
        if not public:
            raise RefusedRequest(
                403, f"{head.host} stands for an address that is not public and not on the list"
            )
        return public

    async def _connect(self, addresses: list[Address], port: int) -> socket.socket:
        for address in addresses[:4]:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            server = socket.socket(family, socket.SOCK_STREAM)
            server.setblocking(False)
            try:
                async with asyncio.timeout(self._network.limits.connect_s):
                    await self._loop.sock_connect(server, (str(address), port))
            except (OSError, TimeoutError):
                server.close()
                continue
            except BaseException:
                server.close()
                raise
            return server
        raise RefusedRequest(502, f"{self._record.host}:{port} does not answer")

    async def _refuse(self, error: RefusedRequest) -> None:
        self._record.reason = str(error)
        text = f"{error}\n".encode()
        head = f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\nContent-Type: text/plain\r\n"
        ends = f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        await self._loop.sock_sendall(self._client, head.encode() + ends.encode() + text)
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)

    async def _forward(self, head: RequestHead, rest: bytes, server: socket.socket) -> None:
        self._record.allowed = True
        if head.is_tunnel:
            await self._loop.sock_sendall(self._client, b"HTTP/1.1 200 Connection established\r\n\r\n")
            outward, most = rest, None
        else:
            # One request to a connection: what comes behind its body could name another host.
            outward, most = head.forward + rest[: head.body_length], head.body_length - len(rest)
        await self._spend(len(outward), outward=True)
        await self._loop.sock_sendall(server, outward)
        there = asyncio.create_task(self._copy(self._client, server, most, outward=True))
        back = asyncio.create_task(self._copy(server, self._client, None, outward=False))
        try:
            # The server's end is the end; a client that has said all may still be answered.
            await back if not head.is_tunnel else await asyncio.gather(there, back)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    async def _copy(
        self, source: socket.socket, target: socket.socket, most: int | None, *, outward: bool
    ) -> None:
        """Copy until the end, or `most` bytes."""
        while most is None or most > 0:
            data = await self._receive(source, _CHUNK if most is None else min(most, _CHUNK))
            if not data:
                break
            await self._spend(len(data), outward=outward)
            async with asyncio.timeout(self._network.limits.idle_s):
                await self._loop.sock_sendall(target, data)
            most = None if most is None else most - len(data)
        if most is None:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    async def _receive(self, source: socket.socket, size: int) -> bytes:
        """The next bytes. Raises `TimeoutError` when neither side has sent any for long enough."""
        idle_s = self._network.limits.idle_s
        while True:
            left = self._last + idle_s - time.monotonic()
            if left <= 0:
                raise TimeoutError
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    data = await self._loop.sock_recv(source, size)
                self._last = time.monotonic()
                return data

    async def _spend(self, size: int, *, outward: bool) -> None:
        self._network.used += size
        if outward:
            self._record.sent += size
        else:
            self._record.received += size
        if self._network.used > self._network.limits.network_bytes:
            self._record.reason = "the session has used up its bytes of network"
            raise ConnectionAbortedError


class ProxyServer:
    """Answers the owner: sessions come and go."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._sessions: dict[str, SessionNetwork] = {}
        self._ended = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        asyncio.get_running_loop().add_reader(self._owner, self._read)
        await self._ended.wait()

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._owner, _CHUNK, 1)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._owner)
            self._ended.set()
            return
        task = asyncio.get_running_loop().create_task(self._answer(json.loads(data), descriptors))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _answer(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        name = request["session"]
        reply: Mapping[str, Any] = {"event": "done"}
        match request["op"]:
            case "open":
                listener = socket.socket(fileno=descriptors[0])
                listener.setblocking(False)
                limits = ProxyLimits(**request["limits"])
                network = SessionNetwork(listener, AllowList.of(request["allowed"]), limits)
                self._sessions[name] = network
                network.start()
            case "log" if name in self._sessions:
                reply = self._sessions[name].told()
            case "close" if name in self._sessions:
                network = self._sessions.pop(name)
                await network.close()
                reply = network.told()
        self._owner.send(json.dumps(reply).encode())


def main(descriptor: int) -> None:
    """Give up what is not needed, and serve until the owner goes away."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    owner = socket.socket(fileno=descriptor)
    owner.setblocking(False)
    owner.send(b'{"event":"ready"}')
    asyncio.run(ProxyServer(owner).serve())
