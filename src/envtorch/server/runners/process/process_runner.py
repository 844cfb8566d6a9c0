"""Runs an environment that lives in a process of its own, and ends that process when it must."""

import asyncio
import logging
import signal
import socket
from collections.abc import Generator
from typing import Any, Protocol, TypeVar

import msgspec

from envtorch.errors import EnvironmentFailed, EnvTorchError, OutOfResources, SessionLost
from envtorch.protocol.flow import drive_async
from envtorch.protocol.host import Host
from envtorch.server.runners.process.process_host import RemoteHost
from envtorch.server.runners.process.process_messages import (
    LENGTH,
    MAX_DESCRIPTORS,
    Answer,
    Call,
    Failed,
    Hello,
    Ready,
    frame,
    read_answer,
    take_length,
)
from envtorch.server.runners.runner import Housed

__all__ = ["Keeping", "ProcessRunner", "welcome"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

BURIAL_S = 5.0
"""How long a process may take to end by itself."""


class Keeping(Protocol):
    """Who keeps the processes: kills one, and tells how one ended."""

    def expect(self, process: int) -> "asyncio.Future[int | None]":
        """How the process ended; None when nobody can tell any more."""

    def kill(self, process: int) -> None: ...


class ProcessRunner:
    """One environment, one process, one socket to it."""

    immediate = joins = None
    start = None
    can_stop = True
    delivers = False

    def __init__(self, keeping: Keeping, line: socket.socket, process: int) -> None:
        self._keeping = keeping
        self._line = line
        self._process = process
        self._death = keeping.expect(process)
        self.ended: str | None = None

    @property
    def process(self) -> int:
        return self._process

    async def run(self, flow: Generator[Any, Any, T]) -> T:
        return await drive_async(flow, self._ask)

    async def _ask(self, call: Call) -> Any:
        return await self._exchange(call, [])

    async def _exchange(self, call: Call, descriptors: list[int]) -> Answer:
        if self.ended is not None:
            raise SessionLost(f"the session is gone: {self.ended}")
        loop = asyncio.get_running_loop()
        try:
            if descriptors:
                socket.send_fds(
                    self._line, [frame(call)], descriptors
                )  # short, and nothing else is under way
            else:
                await loop.sock_sendall(self._line, frame(call))
            answer = await receive(self._line)
        except asyncio.CancelledError:
            self._end("a call was cancelled or ran past its deadline, and its process was killed")
            raise
        except (OSError, EOFError):
            raise await self.post_mortem() from None
        except (ValueError, msgspec.MsgspecError) as error:
            self._end("its process broke the rules of the conversation")
            raise EnvironmentFailed(f"{self.ended}: {error}", usable=False) from error
        if isinstance(answer, Failed):
            raise answer.error()
        return answer

    def _end(self, reason: str) -> None:
        self.ended = reason
        self._keeping.kill(self._process)

    async def post_mortem(self) -> EnvTorchError:
        """What became of the process, as an error of ours."""
        self.ended = "its process ended"
        try:
            async with asyncio.timeout(BURIAL_S):
                status = await asyncio.shield(self._death)
        except TimeoutError:
            self._keeping.kill(self._process)
            return EnvironmentFailed("the environment cut its own line to the server", usable=False)
        if status is None:
            return SessionLost("the session is gone: the processes of this server were ended")
        if status == -signal.SIGKILL:
            self.ended = "its process was killed"
            return OutOfResources(
                "the environment's process was killed: out of memory, or by somebody outside",
                signal="SIGKILL",
                usable=False,
            )
        if status < 0:
            name = signal.Signals(-status).name
            self.ended = f"its process died of {name}"
            return EnvironmentFailed(f"the environment's process died of {name}", signal=name, usable=False)
        self.ended = f"its process ended with status {status}"
        return EnvironmentFailed(
            f"the environment ended its own process, with status {status}", exit_status=status, usable=False
        )

    # Copies.

    async def fork(self, host: Host, count: int) -> list[Housed]:
        """Processes forked from this one."""
        lines: list[socket.socket] = []
        try:
            for start in range(0, count, MAX_DESCRIPTORS):
                lines += await self._fork(min(MAX_DESCRIPTORS, count - start))
            return [await welcome(self._keeping, line) for line in lines]
        except BaseException:
            for line in lines:
                line.close()  # whoever is at the other end hears of it, and ends
            raise

    async def _fork(self, count: int) -> list[socket.socket]:
        pairs = [socket.socketpair() for _ in range(count)]
        try:
            await self._exchange(Call("fork"), [theirs.fileno() for _, theirs in pairs])
        except BaseException:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        return [ours for ours, _ in pairs]

    async def close(self) -> None:
        """Let go of the process and see it end."""
        self._line.close()
        try:
            async with asyncio.timeout(BURIAL_S):
                await asyncio.shield(self._death)
        except TimeoutError:
            logger.warning("process %d does not end by itself, and is killed", self._process)
            self._keeping.kill(self._process)
            await asyncio.shield(self._death)
        self.ended = self.ended or "it was closed"


async def receive(line: socket.socket) -> Answer:
    """The next frame on a session's socket. Raises `EOFError` when its process has gone."""
    head = await _exactly(line, LENGTH.size)
    return read_answer(await _exactly(line, take_length(head)))


async def _exactly(line: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = await loop.sock_recv(line, min(size, 1 << 20))
    if len(data) == size:
        return data
    whole = bytearray(data)
    while data and len(whole) < size:
        data = await loop.sock_recv(line, min(size - len(whole), 1 << 20))
        whole += data
    if not data:
        raise EOFError
    return bytes(whole)


async def welcome(keeping: Keeping, line: socket.socket) -> Housed:
    """The environment at the other end of a new line, when it is built."""
    line.setblocking(False)
    hello = await receive(line)
    if not isinstance(hello, Hello):
        raise EOFError
    runner = ProcessRunner(keeping, line, hello.process)
    try:
        ready = await receive(line)
    except asyncio.CancelledError:
        keeping.kill(hello.process)
        raise
    except (EOFError, OSError):
        raise await runner.post_mortem() from None
    if isinstance(ready, Failed):
        line.close()
        raise ready.error()
    assert isinstance(ready, Ready)
    return Housed(RemoteHost(ready), runner)
