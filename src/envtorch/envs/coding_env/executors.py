"""Where an agent's code runs: a kernel sandbox, or smolagents' interpreter where there is none."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, Protocol

from envtorch.errors import ConfigurationError
from envtorch.sandbox import AsyncSandbox, Executor, Policy, Result

__all__ = ["AwaitedExecutor", "ExecutorName", "OnThread", "open_executor"]

ExecutorName = Literal["sandbox", "smolagents"]


class AwaitedExecutor(Protocol):
    """An executor that never blocks the event loop. `AsyncSandbox` is one."""

    @property
    def alive(self) -> bool: ...
    async def run(self, code: str, *, timeout_s: float | None = None) -> Result: ...
    async def close(self) -> None: ...


async def open_executor(name: str, policy: Policy) -> AwaitedExecutor:
    """A fresh executor. The caller closes it. Raises `MissingExtra` when it is not installed."""
    match name:
        case "sandbox":
            return await AsyncSandbox.open(policy)
        case "smolagents":
            return OnThread(_smolagents(policy))
    raise ConfigurationError(f"there is no executor {name!r}: it is 'sandbox' or 'smolagents'")


class OnThread:
    """A blocking executor, on a thread of its own, so that the event loop goes on meanwhile."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._thread = ThreadPoolExecutor(1, "coding-env")

    @property
    def alive(self) -> bool:
        return self._executor.alive

    async def run(self, code: str, *, timeout_s: float | None = None) -> Result:
        call = partial(self._executor.run, code, timeout_s=timeout_s)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        # Not waited for: code that hangs in this process cannot be ended, and must not hang the server.
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._executor.close()


def _smolagents(policy: Policy) -> Executor:
    from envtorch.sandbox.smolagents_executor import SmolagentsExecutor

    return SmolagentsExecutor(
        imports=policy.preload, timeout_s=policy.timeout_s, output_bytes=policy.output_bytes
    )
