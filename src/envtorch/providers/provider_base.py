"""The contract: a provider starts one server somewhere, tells its address, and stops it again.

`ContainerProvider` and `RuntimeProvider` have OpenEnv's names. Both may be used as a context manager,
blocking or async, and both promise:

* what was started is stopped: by `close`, by an exception in the `with` block, when the provider is
  forgotten, when the interpreter exits, and, after a `kill -9` of the owner, by the next start or `sweep`;
* one provider runs one server at a time, and may start another after it was stopped;
* an option nobody knows is an error, and nothing was started then;
* every failure is a `ProviderFailed` with one sentence and the last lines the server wrote.

Authors of a provider: start something, hand it to `_adopt` as a `Server`, and the rest is here.
`envtorch.testing.check_provider` tells whether the promises are kept.
"""

import asyncio
import enum
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from envtorch.errors import ConfigurationError
from envtorch.providers.ready import Ask, probe, wait_until_healthy
from envtorch.shown_urls import shown_url

__all__ = ["ContainerProvider", "Phase", "Provider", "RuntimeProvider", "Server", "Status"]


class Phase(enum.Enum):
    """Where a server stands, as far as whatever runs it can tell."""

    ABSENT = "absent"
    """Nothing was started, or it was stopped."""

    STARTING = "starting"
    """Accepted, but not running yet: an image is pulled, a pod waits for a node."""

    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Status:
    """What a provider knows of its server."""

    phase: Phase
    detail: str = ""
    exit_code: int | None = None

    @property
    def is_alive(self) -> bool:
        return self.phase in (Phase.STARTING, Phase.RUNNING)


ABSENT = Status(Phase.ABSENT)


class Server(Protocol):
    """One started server: what a provider holds between start and stop. Safe to use from any thread."""

    @property
    def base_url(self) -> str: ...

    def status(self) -> Status:
        """Whether it lives. Where whatever runs it does not answer: `Phase.RUNNING`, and that as the detail,
        as a server may well live without it."""
        ...

    def logs(self, tail: int) -> str:
        """The last lines that it wrote; after `stop`, what is still known of them, which may be nothing."""
        ...

    def stop(self) -> None:
        """End the server and everything made for it. Called again, it does nothing."""
        ...


def _stop(server: Server, pid: int) -> None:
    """Stop a server, in the process that started it: one that was forked from it leaves it alone."""
    if os.getpid() == pid:
        server.stop()


class Provider(ABC):
    """What container and runtime providers have in common: the life of one server."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._server: Server | None = None
        self._last_words = ""
        self._stopper: weakref.finalize[..., Any] | None = None

    @property
    def base_url(self) -> str | None:
        """The address of the server that runs now."""
        server = self._server
        return server.base_url if server is not None else None

    def status(self) -> Status:
        """Whether the server lives; `Phase.ABSENT` when there is none."""
        server = self._server
        return server.status() if server is not None else ABSENT

    def logs(self, tail: int = 100) -> str:
        """The last lines that the server wrote; of the previous server when it was stopped."""
        if tail < 1:
            raise ConfigurationError(f"tail={tail!r}: ask for at least one line")
        server = self._server
        text = server.logs(tail) if server is not None else self._last_words
        return "\n".join(text.splitlines()[-tail:])

    @abstractmethod
    def stop_container(self) -> None:
        """Stop the server and remove everything made for it; without one, do nothing."""

    def close(self) -> None:
        """The same as stopping."""
        self.stop_container()

    # For providers: how a server is taken over, and let go.

    def _refuse_second(self) -> None:
        if self._server is not None:
            raise ConfigurationError(
                f"this {type(self).__name__} already runs a server at {shown_url(self._server.base_url)}: "
                "stop it first, or use a second provider"
            )

    def _adopt(self, server: Server) -> str:
        """Take responsibility for a server that was just started; its address."""
        with self._guard:
            if self._server is not None:
                server.stop()
                self._refuse_second()
            self._server = server
            # `finalize` also runs at interpreter exit, and holds no reference to this object.
            self._stopper = weakref.finalize(self, _stop, server, os.getpid())
        return server.base_url

    def _release(self) -> None:
        """Stop the server that was adopted. If that fails, it is tried again at exit."""
        server = self._server
        if server is None:
            return
        try:
            self._last_words = server.logs(100)  # with a container its logs are removed
        finally:
            server.stop()
            self._last_words = server.logs(100) or self._last_words  # of a process, now they are complete
            with self._guard:
                if self._server is server:
                    self._server = None
                    if self._stopper is not None:
                        self._stopper.detach()

    def _wait_until_healthy(self, base_url: str, timeout_s: float, ask: Ask = probe) -> None:
        if self._server is None:
            raise ConfigurationError("there is no server to wait for: start one first")
        wait_until_healthy(base_url, timeout_s=timeout_s, watched=self, ask=ask)


class ContainerProvider(Provider):
    """Starts a server from an image."""

    @abstractmethod
    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        """Start a server from `image`; its address. It need not be healthy yet: see `wait_for_ready`.

        `port` is the port on this machine; left out, a free one is chosen without a race.
        """

    def stop_container(self) -> None:
        self._release()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Return when the server at `base_url` is healthy.

        Raises `ServerExited` as soon as it ended, `NotReady` at the deadline; both carry its last lines.
        """
        self._wait_until_healthy(base_url, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await _finish(self.close)


class RuntimeProvider(Provider):
    """Starts a server from what it was told when it was made; entering it starts the server."""

    context_timeout_s: float = 60.0
    """How long `with provider:` waits for the server to be healthy."""

    @abstractmethod
    def start(
        self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **options: Any
    ) -> str:
        """Start the server; its address. It need not be healthy yet: see `wait_for_ready`."""

    def stop(self) -> None:
        """Stop the server and remove everything made for it; without one, do nothing."""
        self._release()

    def stop_container(self) -> None:
        self.stop()

    def wait_for_ready(self, timeout_s: float = 60.0) -> None:
        """Return when the server is healthy.

        Raises `ServerExited` as soon as it ended, `NotReady` at the deadline; both carry its last lines.
        """
        self._wait_until_healthy(self.base_url or "", timeout_s)

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_for_ready(self.context_timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        entering = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The thread cannot be interrupted, but stopping its server ends its wait.
            await _finish(self.close)
            await asyncio.wait([entering])
            await _finish(self.close)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await _finish(self.close)


async def _finish(stop: Any) -> None:
    """Run a blocking `stop` off the loop, to its end even if the caller is cancelled meanwhile."""
    stopping = asyncio.ensure_future(asyncio.to_thread(stop))
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await asyncio.wait([stopping])
        raise
