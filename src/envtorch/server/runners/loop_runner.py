"""Environments on the server's event loop: async ones, and plain ones that never block."""

import asyncio
import os
from functools import partial
from typing import Any

from envtorch.errors import Cancelled
from envtorch.protocol.calls import Call
from envtorch.protocol.host import CallResult, EnvironmentHost, begin
from envtorch.server.runners.forked_process import end_if_forked, finish_here
from envtorch.server.runners.runner import Done

__all__ = ["LoopRunner"]


class LoopRunner:
    """Calls an environment right here. What has to be awaited becomes a task."""

    ended = None

    def __init__(self, host: EnvironmentHost) -> None:
        self.host = host
        self.name, self.has_tools = host.name, host.has_tools
        self.steps_together = host if host.step_many is not None else None
        self._task: asyncio.Task[CallResult] | None = None

    def start(self, call: Call, done: Done) -> None:
        if call.operation == "fork":
            done = partial(_forked, done)
        process = os.getpid()
        answered = begin(self.host, call)
        end_if_forked(process)
        if isinstance(answered, CallResult):
            done(*answered)
            return
        flow, wanted = answered
        self._task = asyncio.get_running_loop().create_task(finish_here(call, flow, wanted))
        self._task.add_done_callback(partial(self._finished, done, wanted))

    def _finished(self, done: Done, wanted: Any, task: "asyncio.Task[CallResult]") -> None:
        self._task = None
        if task.cancelled():  # before its first line
            if asyncio.iscoroutine(wanted):
                wanted.close()
            done(None, Cancelled("the request was taken back"))
        else:
            done(*task.result())

    def stop(self) -> bool:
        if self._task is not None:
            self._task.cancel()
        return True

    async def close(self) -> None:
        pass


def _forked(done: Done, hosts: Any, error: Any) -> None:
    done(None if hosts is None else [LoopRunner(host) for host in hosts], error)
