"""OpenEnv's small functions."""

import asyncio
import re
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from envtorch.protocol.requests import websocket_url

__all__ = ["convert_to_ws_url", "hf_space_subdomain", "run_async_safely"]

T = TypeVar("T")


def run_async_safely(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine comes to, for a caller that cannot await: on a loop of its own.

    Where this thread's loop already runs, the coroutine gets a thread too.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as error:  # raised again below, where somebody waits for it
            failure.append(error)

    thread = threading.Thread(target=work, name="run-async-safely")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def convert_to_ws_url(url: str) -> str:
    """A server's address as a WebSocket's."""
    return websocket_url(url, path="")


def hf_space_subdomain(repo_id: str) -> str:
    """The host name of a Hugging Face Space, which has only letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]", "-", repo_id.lower())
