"""Run an application: uvicorn, with what an environment server needs around it."""

import asyncio
import atexit
import contextlib
import gc
import ipaddress
import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.server import Server

from envtorch.env import Environment
from envtorch.errors import ConfigurationError, EnvTorchError, FactoryFailed
from envtorch.server.security.gate import AccessGate, is_worth_logging
from envtorch.server.security.keys import Keys
from envtorch.server.sessions.registry import Sessions
from envtorch.server.transport.http_connection import BoundedHttpProtocol
from envtorch.server.transport.upgrade import FastProtocol
from envtorch.settings import Settings

if TYPE_CHECKING:
    from envtorch.server.options import ServerOptions

__all__ = [
    "DrainingServer",
    "find_dead_peers",
    "is_loopback",
    "serve",
    "spare_the_collector",
    "uvicorn_config",
]

logger = logging.getLogger(__name__)

LARGEST_FRAME_BYTES = 100 * 1024 * 1024
"""The largest WebSocket frame that is read at all: OpenEnv's clients send frames up to this size. One above
the server's `max_message_bytes` is answered with an error; a larger one than this ends its socket."""

LEAVE_S = 3.0
"""How long the event loop of a server that has stopped may take to end."""
SHORTEST_LEAVE_S = 1.0
"""How long it has when an environment is known to hang, which has had the time to drain already."""

UNANSWERED_S = 30
"""How long sent bytes may stay unacknowledged, by the peer's kernel, before its connection is dead."""


def uvicorn_config(app: Any, **options: Any) -> Config:
    """uvicorn's configuration for `app`; `options` are uvicorn's own and win over ours."""
    logging.getLogger("uvicorn.error").addFilter(is_worth_logging)
    return Config(
        app,
        **{
            "access_log": options.get("log_level", "warning") != "warning",
            "http": BoundedHttpProtocol,
            "ws": FastProtocol,
            "ws_max_size": LARGEST_FRAME_BYTES,
            "ws_per_message_deflate": False,
            "timeout_graceful_shutdown": 5,
            "log_level": "warning",
            **options,
        },
    )


class DrainingServer(Server):
    """Stops in order: no new episode, open sessions ended or given up on; no new call, running calls answered
    or given up on; then everything closed."""

    def __init__(
        self,
        config: Config,
        sessions: Sessions | None,
        *,
        drain_s: float,
        finish_s: float = 0.0,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._sessions = sessions
        self._drain_s = drain_s
        self._finish_s = finish_s
        self._on_ready = on_ready
        self.failure: EnvTorchError | None = None
        """Why the server never became ready; None when it did."""
        self._hurry = asyncio.Event()
        self._told_to_stop = asyncio.Event()
        self._is_signalled = False
        """Whether a signal told it: the process then ends with the server."""
        self._last_resort: threading.Timer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second one hurries. Neither is raised again: the exit code is 0."""
        if self._loop is not None:
            told = self._hurry if self.should_exit else self._told_to_stop
            self._loop.call_soon_threadsafe(told.set)
            self._is_signalled = True
        self.should_exit = True

    def hurry_to_stop(self) -> None:
        """Stop without time to finish sessions or to drain. For other threads than the loop's."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
                self._loop.call_soon_threadsafe(self._told_to_stop.set)
                self._loop.call_soon_threadsafe(self._hurry.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._on_ready is None:
            return
        if self.should_exit:
            self.failure = FactoryFailed("the application failed while it started; the log says why")
            return
        try:
            if self._sessions is not None and not await _done_before(
                self._sessions.spare(), self._told_to_stop
            ):
                return  # told to stop while the first environment is being built
        except EnvTorchError as error:
            self.failure = error
            self.should_exit = True
            await super().shutdown(sockets)
        else:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish sessions, and drain, within the times for it. Closing sockets and sessions has the rest of
        the time to drain, or a second."""
        if self._sessions is not None:
            loop = asyncio.get_running_loop()
            if self._finish_s > 0:
                await _done_before(self._sessions.finish(self._finish_s), self._hurry)
            stop_at = loop.time() + self._drain_s
            if not await _done_before(self._sessions.drain(self._drain_s), self._hurry):
                stop_at = self._sessions.stop_at = loop.time()
            left_s = max(1, math.ceil(stop_at - loop.time()))
            self.config.timeout_graceful_shutdown = min(
                left_s, self.config.timeout_graceful_shutdown or left_s
            )
        await self.take_no_more()
        await super().shutdown(sockets)
        if self._is_signalled:
            hanging = [] if self._sessions is None else self._sessions.hanging
            leave_s = SHORTEST_LEAVE_S if hanging else LEAVE_S
            self._last_resort = threading.Timer(leave_s, _leave, [hanging])
            self._last_resort.daemon = True
            self._last_resort.start()

    async def take_no_more(self) -> None:
        """Before connections are closed: have no other one come, where they do not come from listeners."""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        finally:
            if self._last_resort is not None:
                self._last_resort.cancel()


def _leave(hanging: Sequence[str]) -> None:
    """End a process that was told to stop, and whose event loop does not end.

    asyncio waits without end for tasks that ignore their cancellation, and Python, at its exit, for the
    threads of executors: neither can be stopped, so only the process can be.
    """
    what = ", ".join(hanging) or "a task or a thread of an environment"
    logger.error("%s keeps the event loop from ending; the process ends without it", what)
    logging.shutdown()
    os._exit(0)


async def _done_before(work: Coroutine[Any, Any, Any], event: asyncio.Event) -> bool:
    """Do `work` until it is over or `event` is set; say whether it is over. Raises what `work` raises."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    first: set[asyncio.Future[Any]] = {working, waiting}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    is_over = working.done()
    for task in first:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    with contextlib.suppress(asyncio.CancelledError):
        await working
    return is_over


def serve(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    listener: socket.socket | None = None,
    token_file: Path | str | None = None,
    finish_s: float | None = None,
    drain_s: float | None = None,
    on_ready: Callable[[], None] | None = None,
    options: "ServerOptions | None" = None,
    **uvicorn_options: Any,
) -> None:
    """Serve `app` until the process is told to stop.

    `app` is an application, or an environment: `serve(MyEnvironment, options=ServerOptions(sessions=8))`.
    Other keywords are uvicorn's own.

    A `listener` is a socket that is already bound, which leaves no race for the port. Tokens from
    `token_file` lock every door, beside those the application itself asks for.

    At SIGTERM the server begins no episode any more. Sessions that are open have `finish_s` seconds to end,
    and after that running calls have `drain_s`; by default what `Settings` says, 0 and 30. A process whose
    event loop then still does not end, because a task ignores its cancellation or a thread of the loop's
    executor hangs, is ended after `LEAVE_S` more, or `SHORTEST_LEAVE_S` when an environment is known to hang,
    with exit code 0 and a line in the log that says which. Sessions and recordings are closed by then, but
    hooks of `atexit` do not run.

    In another thread than the main one there are no signals: such a server serves until the process ends, and
    is stopped then, by a hook of `atexit`, without time to drain.

    With `on_ready` the first environment is built at once, and kept for the first session; `on_ready` is
    called when that is done and connections are accepted. Raises `FactoryFailed` when the environment cannot
    be built.
    """
    if isinstance(app, str | Environment) or (isinstance(app, type) and issubclass(app, Environment)):
        from envtorch.server.app import create_app

        app = create_app(app, options=options)
    elif options is not None:
        raise ConfigurationError("options are for an environment: an application was made with its own")
    if listener is None:
        listener = socket.create_server((host, port), backlog=2048)
    find_dead_peers(listener)
    server = getattr(getattr(app, "state", None), "env_server", None)
    is_exposed = not is_loopback(listener)
    if server is not None:
        server.bound(locked=token_file is not None, exposed=is_exposed)
    is_locked = token_file is not None or bool(getattr(server, "is_locked", False))
    if not is_locked and is_exposed:
        logger.warning(
            "this server is open to everybody who can reach it: set ENVTORCH_TOKEN or --token-file"
        )
    settings = Settings.from_environ()
    locked = (
        app
        if token_file is None
        else AccessGate(app, keys=Keys(file=Path(token_file)), has_page=settings.web_interface)
    )
    sessions = server.sessions if server is not None else None
    config = uvicorn_config(locked, **uvicorn_options)
    spare_the_collector()
    running = DrainingServer(
        config,
        sessions,
        finish_s=settings.finish_s if finish_s is None else finish_s,
        drain_s=settings.drain_s if drain_s is None else drain_s,
        on_ready=on_ready,
    )
    with _stopped_at_exit(running):
        running.run(sockets=[listener])
    if running.failure is not None:
        raise running.failure


@contextlib.contextmanager
def _stopped_at_exit(running: DrainingServer) -> Iterator[None]:
    """Have a server in another thread than the main one stop before the interpreter is finalized.

    Python's own daemon threads are frozen by that wherever they are, and an event loop written in C, which
    then goes on beside an interpreter that is being taken apart, may crash the process.
    """
    if threading.current_thread() is threading.main_thread():
        yield
        return
    thread = threading.current_thread()

    def stop() -> None:
        running.hurry_to_stop()
        thread.join(LEAVE_S)

    atexit.register(stop)
    try:
        yield
    finally:
        atexit.unregister(stop)


def spare_the_collector() -> None:
    """Look for garbage less often, and not among what was loaded at the start.

    A step makes dozens of objects and keeps none; counted in the default way, they have the collector walk
    over every session every few hundred steps. A connection leaves about 70 objects in cycles, most of them
    uvicorn's: at 10,000 the garbage of closed connections stays near a megabyte.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def find_dead_peers(listener: socket.socket) -> None:
    """Have the kernel notice peers that are gone without a word. Accepted sockets inherit this."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_S * 1000)


def is_loopback(listener: socket.socket) -> bool:
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
