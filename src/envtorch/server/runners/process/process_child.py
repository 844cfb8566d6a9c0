"""A session's process: one environment, called one frame at a time."""

import asyncio
import inspect
import os
import random
import selectors
import sys
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

from envtorch.errors import EnvTorchError, FactoryFailed, Unsupported
from envtorch.protocol.binding import Colour
from envtorch.protocol.calls import Call
from envtorch.protocol.codec import Codec
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.flow import settle
from envtorch.protocol.host import CallResult, EnvironmentHost, answer, begin, failure_of, finish
from envtorch.server.runners.forked_process import end_if_forked
from envtorch.server.runners.process.process_messages import (
    NO_CALL,
    Answer,
    CallFailed,
    FrameSocket,
    Hello,
    NumberedCall,
    RawAnswer,
    Ready,
    keep_only,
)
from envtorch.server.runners.process.process_spawning import branch, threads
from envtorch.server.sessions.environment_factory import Factory

__all__ = ["Seed", "run_session_process"]


@dataclass(frozen=True, slots=True)
class Seed:
    """What all sessions of one zygote have in common."""

    factory: Factory
    codec: Codec[Any, Any, Any]
    keeper: int


def run_session_process(seed: Seed, descriptor: int) -> NoReturn:
    """In a new process: build the environment, serve it to its end, and end."""
    try:
        keep_only(descriptor)
        _draw_apart()
        frames = FrameSocket(descriptor)
        frames.send(Hello(os.getpid()))
        try:
            host = EnvironmentHost(seed.factory.make(), seed.codec)
        except BaseException as error:  # foreign code: whatever it does is the reason
            reason = FactoryFailed(
                f"Environment factory '{seed.factory.name}' failed to create instance.",
                factory_name=seed.factory.name,
                reason=str(error) or repr(error),
            )
            frames.send(CallFailed.of(reason, traceback.format_exc()))
        else:
            Child(frames, host, seed.keeper).serve()
    except (EOFError, ConnectionError):
        pass  # the server has let go of us
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _draw_apart() -> None:
    """Sessions of one zygote must not all draw the same numbers. `random` sees to itself at a fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


class Child:
    """The environment, its socket, and its loop if it has one."""

    def __init__(self, frames: FrameSocket, host: EnvironmentHost, keeper: int) -> None:
        self._frames = frames
        self._number = NO_CALL
        """The call that is being answered."""
        self._host = host
        self._keeper = keeper
        self._given_away: list[EnvironmentHost] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        if host.colour is not Colour.SYNC:
            # poll, not epoll: the latter would be shared with every process forked from this one.
            self._loop = asyncio.SelectorEventLoop(selectors.PollSelector())

    def serve(self) -> None:
        self._frames.send(self._ready())
        while True:
            self._number, call = self._next()
            answer = self._answer(call)
            self._frames.send(answer, self._number)  # a fork has changed both, in the copy

    def _ready(self) -> Ready:
        return Ready(type(self._host.environment).__name__, self._host.has_tools)

    def _next(self) -> NumberedCall:
        """The next call. An async environment's own tasks go on meanwhile."""
        if self._loop is not None:
            self._loop.run_until_complete(_readable(self._loop, self._frames.socket.fileno()))
        return self._frames.receive()

    def _answer(self, call: Call) -> Answer:
        if call.operation == "fork":
            try:
                return self._fork(call)
            except BaseException as error:
                return _failed(failure_of("fork", error))
        answered = self._call(call)
        if answered.error is not None:
            return _failed(answered.error)
        return answered.result if isinstance(answered.result, Encoded) else RawAnswer(answered.result or b"")

    def _call(self, call: Call) -> CallResult:
        process = os.getpid()
        if self._loop is None:
            answered = answer(self._host, call, _settled)
        else:
            answered = self._loop.run_until_complete(self._call_on_loop(call))
        end_if_forked(process)
        return answered

    async def _call_on_loop(self, call: Call) -> CallResult:
        answered = begin(self._host, call)
        return answered if isinstance(answered, CallResult) else await finish(call, *answered)

    # Copies.

    def _fork(self, call: Call) -> Answer:
        """A copy of this process for each descriptor that came. Every copy says so on its own."""
        descriptors = self._frames.take_descriptors()
        try:
            hosts = self._copies(len(descriptors))
            drawn = random.getstate()
            for descriptor, host in zip(descriptors, hosts, strict=True):
                if branch(self._keeper):
                    random.setstate(drawn)  # `random` seeds itself anew at a fork; a copy must not
                    self._become(descriptor, host)
                    return self._ready()
        finally:
            for descriptor in descriptors:
                if descriptor != self._frames.socket.fileno():
                    os.close(descriptor)
        return RawAnswer(b"")

    def _copies(self, count: int) -> list[EnvironmentHost]:
        """What the copies will serve. Memory is copied by the kernel; what lies outside, by the author."""
        if threads() > 1:
            raise Unsupported(
                f"{type(self._host.environment).__name__} cannot be forked: its process has {threads()} "
                "threads, and a fork would copy one"
            )
        if getattr(self._host.environment, "fork", None) is None:
            return [self._host] * count
        answered = self._call(Call.with_arguments("fork", count))
        if answered.error is not None:
            raise answered.error
        copies: list[EnvironmentHost] = answered.result
        self._given_away += copies  # kept: a finalizer must not end here what a copy goes on using
        return copies

    def _become(self, descriptor: int, host: EnvironmentHost) -> None:
        """In the copy: serve another socket, from here on."""
        self._frames.socket.close()
        self._frames, self._number = FrameSocket(descriptor), NO_CALL
        self._host = host
        self._frames.send(Hello(os.getpid()))


async def _readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _resolve(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _settled(value: Any) -> Any:
    return asyncio.run(settle(value)) if inspect.isawaitable(value) else value


def _failed(error: EnvTorchError) -> CallFailed:
    cause = error.__cause__ or error
    return CallFailed.of(error, "".join(traceback.format_exception(cause)))
