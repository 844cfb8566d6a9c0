"""Calls an environment that lives in a process of its own, and ends that process when it must."""

import asyncio
import logging
import signal
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from envtorch.errors import (
    EnvironmentFailed,
    EnvTorchError,
    InternalError,
    OutOfResources,
    SessionLost,
    Unsupported,
)
from envtorch.protocol.calls import Call, Perform, read_arguments
from envtorch.protocol.encoding import Encoded
from envtorch.server.runners.process.process_messages import (
    HEAD,
    MAX_DESCRIPTORS,
    NO_CALL,
    Answer,
    CallFailed,
    Hello,
    RawAnswer,
    Ready,
    frame,
    read_answer,
    read_head,
)
from envtorch.server.runners.runner import Done

__all__ = ["ProcessRunner", "ProcessSupervision", "welcome"]

logger = logging.getLogger(__name__)

ABOUT_THE_ENVIRONMENT = frozenset({"metadata", "state_schema", "list_tools", "tasks"})
"""Calls that are no part of an episode, and may be made before there is a session."""

END_TIMEOUT_S = 5.0
"""How long a process may take to end by itself."""

NOT_READY = "its process ended before the environment was ready; what it wrote is on the server's stderr"
RULES_BROKEN = "its process broke the rules of the conversation"


class ProcessSupervision(Protocol):
    """The supervisor of the processes, as a runner sees it."""

    def expect(self, process: int) -> "asyncio.Future[int | None]":
        """How the process ended; None when that cannot be known any more."""

    def kill(self, process: int) -> None: ...


class ReceivedFrame(NamedTuple):
    """The body of a frame, and the call that it answers."""

    number: int | None
    """None where the frame's head cannot be read."""
    body: bytes


class ProcessConnection(asyncio.Protocol):
    """The socket to one process: frames out, frames in."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._frames: list[ReceivedFrame] = []
        self._waiting: asyncio.Future[ReceivedFrame] | None = None
        self._transport: asyncio.Transport | None = None
        self.is_lost = False
        self.on_frame: Any = None
        """Called with each frame, and with None when the process is gone. Before, frames are kept."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # a stream's transport can be written to

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            try:
                head = read_head(bytes(self._buffer[: HEAD.size]))
            except ValueError:
                self._buffer.clear()
                self._take(ReceivedFrame(None, b""))  # which is no answer, and ends the process
                return
            end = HEAD.size + head.length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEAD.size : end])
            del self._buffer[:end]
            self._take(ReceivedFrame(head.number, body))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._take(None)

    def _take(self, received: ReceivedFrame | None) -> None:
        if self.on_frame is not None:
            self.on_frame(received)
        elif self._waiting is not None and not self._waiting.done():
            if received is None:
                self._waiting.set_exception(EOFError(NOT_READY))
            else:
                self._waiting.set_result(received)
        elif received is not None:
            self._frames.append(received)

    def send(self, call: Call, number: int) -> None:
        assert self._transport is not None
        self._transport.write(frame(call, number))

    async def receive(self) -> Answer:
        """The next frame, before `on_frame` is set. Raises `EOFError` when the process is gone."""
        if not self._frames:
            if self.is_lost:
                raise EOFError(NOT_READY)
            self._waiting = asyncio.get_running_loop().create_future()
            return read_answer((await self._waiting).body)
        return read_answer(self._frames.pop(0).body)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ProcessRunner:
    """One environment, one process, one socket to it."""

    host = None
    steps_together = None

    def __init__(
        self,
        supervision: ProcessSupervision,
        line: socket.socket,
        connection: ProcessConnection,
        process: int,
    ) -> None:
        self.name, self.has_tools = "", False
        self._supervision = supervision
        self._line = line
        self._connection = connection
        self.process = process
        self._death = supervision.expect(process)
        self._number = NO_CALL
        """The call that was made last: the only one that an answer is taken for."""
        self._done: Done | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_begun = False
        self.ended: str | None = None

    def ready(self, ready: Ready) -> None:
        """The environment is built: take calls."""
        self.name, self.has_tools = ready.name, ready.has_tools
        self._connection.on_frame = self._received

    def start(self, call: Call, done: Done) -> None:
        if self.ended is not None:
            done(None, SessionLost(f"the session is gone: {self.ended}"))
        elif isinstance(call, Perform):
            done(None, Unsupported(f"{self.name} lives in a process of its own, and cannot do that"))
        elif call.operation == "fork":
            self._spawn(self._fork_all(read_arguments(call)[0], done))
        else:
            number = self._expect_answer(done)
            self._has_begun |= call.operation not in ABOUT_THE_ENVIRONMENT
            if self._connection.is_lost:
                self._received(None)
            else:
                self._connection.send(call, number)

    def _expect_answer(self, done: Done) -> int:
        """The number of the call that is made next."""
        self._number += 1
        self._done = done
        return self._number

    def _received(self, received: ReceivedFrame | None) -> None:
        if received is not None and received.number not in (self._number, None):
            return  # no answer to the call that runs: it was written by the environment's own code
        done = self._done
        if done is None:  # it says something that nobody asked for, or ends by itself between two calls
            if received is None and not self._has_begun:  # which no policy has to answer for
                self.ended = self.ended or "its process ended before its first call"
            return
        self._done = None
        if received is None:
            self._spawn(self._tell_end(done))
            return
        try:
            answer = read_answer(received.body)
        except (ValueError, msgspec.MsgspecError) as error:
            self._kill(RULES_BROKEN)
            done(None, EnvironmentFailed(f"{self.ended}: {error}", usable=False))
            return
        if isinstance(answer, CallFailed):
            done(None, answer.error())
        elif isinstance(answer, Encoded):
            done(answer, None)
        elif isinstance(answer, RawAnswer):
            done(answer.data, None)
        else:
            self._kill(RULES_BROKEN)
            done(None, EnvironmentFailed(f"{self.ended}", usable=False))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_end(self, done: Done) -> None:
        done(None, await self.how_it_ended())

    def stop(self) -> bool:
        """Kill the process: nothing less stops a call for sure."""
        self._kill("a call was cancelled or ran past its deadline, and its process was killed")
        return False

    def _kill(self, reason: str) -> None:
        self.ended = self.ended or reason
        self._supervision.kill(self.process)

    async def how_it_ended(self) -> EnvTorchError:
        """What became of the process, as an error of ours."""
        known, self.ended = self.ended, self.ended or "its process ended"
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                status = await asyncio.shield(self._death)
        except TimeoutError:
            self._supervision.kill(self.process)
            return EnvironmentFailed("the environment cut its own line to the server", usable=False)
        if known is not None:
            return SessionLost(f"the session is gone: {known}")
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

    async def _fork_all(self, count: int, done: Done) -> None:
        """Processes forked from this one, all or none."""
        copies: list[ProcessRunner] = []
        try:
            for start in range(0, count, MAX_DESCRIPTORS):
                lines = await self._fork(min(MAX_DESCRIPTORS, count - start))
                welcomes = (welcome(self._supervision, line) for line in lines)
                came = await asyncio.gather(*welcomes, return_exceptions=True)
                copies += [copy for copy in came if isinstance(copy, ProcessRunner)]
                for failure in came:
                    if isinstance(failure, BaseException):
                        raise failure
        except EnvTorchError as error:
            self._discard(copies)
            done(None, error)
        except Exception as error:  # it ended, or what it said is no message of ours
            self._discard(copies)
            done(None, InternalError(f"a copy of the environment's process did not start: {error}"))
        else:
            done(copies, None)

    def _discard(self, copies: Sequence["ProcessRunner"]) -> None:
        for copy in copies:
            self._spawn(copy.close_unused())

    async def close_unused(self) -> None:
        """Close the environment, which no session has, and its process."""
        over = asyncio.Event()
        self.start(Call("close"), lambda result, error: over.set())
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await over.wait()
        except TimeoutError:
            self._kill("its environment did not close in time")
        await self.close()

    async def _fork(self, count: int) -> list[socket.socket]:
        pairs = [socket.socketpair() for _ in range(count)]
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def forked(result: Any, error: EnvTorchError | None) -> None:
            if over.done():
                return
            if error is None:
                over.set_result(None)
            else:
                over.set_exception(error)

        request = frame(Call("fork"), self._expect_answer(forked))
        try:
            # Straight to the socket: short, and nothing else is under way.
            socket.send_fds(self._line, [request], [theirs.fileno() for _, theirs in pairs])
            await over
        except OSError:
            _close_all([ours for ours, _ in pairs])
            raise await self.how_it_ended() from None
        except BaseException:
            _close_all([ours for ours, _ in pairs])
            raise
        finally:
            _close_all([theirs for _, theirs in pairs])
        return [ours for ours, _ in pairs]

    async def close(self) -> None:
        """Let go of the process and see it end."""
        self._connection.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await asyncio.shield(self._death)
        except TimeoutError:
            logger.warning("process %d does not end by itself, and is killed", self.process)
            self._supervision.kill(self.process)
            await asyncio.shield(self._death)
        self.ended = self.ended or "it was closed"


def _close_all(lines: list[socket.socket]) -> None:
    for line in lines:
        line.close()


def _kill_unwanted(
    supervision: ProcessSupervision, connection: ProcessConnection, received: ReceivedFrame | None
) -> None:
    """Kill a process that nobody waits for any more, as soon as it has said which one it is."""
    with suppress(ValueError, msgspec.MsgspecError):
        hello = None if received is None else read_answer(received.body)
        if isinstance(hello, Hello):
            supervision.kill(hello.process)
    connection.close()


async def welcome(supervision: ProcessSupervision, line: socket.socket) -> ProcessRunner:
    """The environment at the other end of a new line, when it is built."""
    line.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_unix_connection(ProcessConnection, sock=line)
    except BaseException:
        line.close()
        raise
    try:
        hello = await connection.receive()
    except asyncio.CancelledError:
        connection.on_frame = partial(_kill_unwanted, supervision, connection)
        raise
    except BaseException:
        connection.close()
        raise
    if not isinstance(hello, Hello):
        connection.close()
        raise EOFError(NOT_READY)
    runner = ProcessRunner(supervision, line, connection, hello.process)
    try:
        ready = await connection.receive()
    except (EOFError, OSError):
        connection.close()
        raise await runner.how_it_ended() from None
    except BaseException:
        supervision.kill(hello.process)
        connection.close()
        raise
    if isinstance(ready, CallFailed):
        connection.close()
        raise ready.error()
    if not isinstance(ready, Ready):
        supervision.kill(hello.process)
        connection.close()
        raise ValueError(RULES_BROKEN)
    runner.ready(ready)
    return runner
