"""The two colours of OpenEnv's clients: one method that blocks, or is awaited, as the caller likes."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from envtorch.client.guard import ProcessGuard

__all__ = ["LoopThread", "Pending", "is_loop_running"]

T = TypeVar("T")


def is_loop_running() -> bool:
    """Whether this thread's event loop runs, so that the caller may await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class LoopThread:
    """An event loop on a thread, started with the first call, for callers who do not await."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._home = ProcessGuard("client")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns; this thread waits for it. Raises `WrongProcess` in a forked process."""
        if not self._home.is_at_home:
            coroutine.close()
            self._home.require()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        """End the thread. A later call starts another."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None or not self._home.is_at_home:
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()
            loop.close()


class Pending(Generic[T]):
    """What a call made inside a running loop gives: to be awaited, or looked at, which waits for it.

    It does nothing until then, and gives the same value however often it is asked.
    """

    def __init__(self, awaited: Callable[[], Coroutine[Any, Any, T]], blocking: Callable[[], T]) -> None:
        self._awaited = awaited
        self._blocking = blocking
        self._outcome: tuple[T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        if self._outcome is None:
            self._outcome = ((yield from self._awaited().__await__()),)
        return self._outcome[0]

    def _value(self) -> T:
        if self._outcome is None:
            self._outcome = (self._blocking(),)
        return self._outcome[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._value(), name)

    def __bool__(self) -> bool:
        return bool(self._value())

    def __repr__(self) -> str:
        return "<pending>" if self._outcome is None else repr(self._outcome[0])


async def settle(value: Any) -> Any:
    """A value, or what it comes to."""
    return await value if isinstance(value, Awaitable) else value
