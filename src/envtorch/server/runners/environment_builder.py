"""Builds an environment where it will live, and its runner."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from envtorch.env import Environment
from envtorch.protocol.binding import Colour
from envtorch.protocol.host import EnvironmentHost
from envtorch.server.runners.forked_process import end_if_forked
from envtorch.server.runners.loop_runner import LoopRunner
from envtorch.server.runners.runner import Runner
from envtorch.server.runners.thread_runner import LoopThreadRunner, ThreadRunner, ThreadStock

__all__ = ["build"]


async def build(
    make: Callable[[], EnvironmentHost],
    threads: ThreadStock,
    *,
    known: type[Environment[Any, Any, Any]] | None,
) -> Runner:
    """A runner with a new environment. Raises what the environment's constructor raises.

    An async environment is the exception to "built where it will live": it lives on the loop, but a
    constructor may block, so it is built off the loop. `known` is the environment's class, where the caller
    knows it in advance.
    """
    if known is not None and not known.BLOCKING:
        return LoopRunner(_made(make))
    worker = threads.take()
    try:
        host = await worker.run(partial(_made, make), threads.results())
    except BaseException:
        threads.give_back(worker)
        raise
    if host.colour is Colour.ASYNC or not host.environment.BLOCKING:
        threads.give_back(worker)
        return LoopRunner(host)
    kind = LoopThreadRunner if host.colour is Colour.MIXED else ThreadRunner
    return kind(host, worker, threads)


def _made(make: Callable[[], EnvironmentHost]) -> EnvironmentHost:
    """What `make` returns. A process that it forked does not get past here."""
    process = os.getpid()
    try:
        return make()
    finally:
        end_if_forked(process)
