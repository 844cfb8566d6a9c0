"""OpenEnv's `SyncEnvClient`: any of its clients, always blocking."""

import inspect
from collections.abc import Awaitable
from typing import Any, Generic, Self

from envtorch.compat.env_client import EnvClient
from envtorch.compat.pending import LoopThread, settle
from envtorch.types import ActT, ObsT, StateT, StepResult

__all__ = ["SyncEnvClient"]


class SyncEnvClient(Generic[ActT, ObsT, StateT]):
    """Runs a client on a loop of its own, and waits. What it does not know it asks that client for."""

    def __init__(self, async_client: EnvClient[ActT, ObsT, StateT]) -> None:
        self._async = async_client
        self._loop_thread = LoopThread("openenv-sync-client-loop")

    @property
    def async_client(self) -> EnvClient[ActT, ObsT, StateT]:
        """The client underneath."""
        return self._async

    def connect(self) -> Self:
        self._call("connect")
        return self

    def disconnect(self) -> None:
        self._call("disconnect")

    def reset(self, **options: Any) -> StepResult[ObsT]:
        result: StepResult[ObsT] = self._call("reset", **options)
        return result

    def step(self, action: ActT, **options: Any) -> StepResult[ObsT]:
        result: StepResult[ObsT] = self._call("step", action, **options)
        return result

    def state(self) -> StateT:
        state: StateT = self._call("state")
        return state

    def new_session(self) -> "SyncEnvClient[ActT, ObsT, StateT]":
        """Another session on the same server, closed together with this one."""
        child = SyncEnvClient(self._call("new_session"))
        child._loop_thread = self._loop_thread
        return child

    def close(self) -> None:
        try:
            self._call("close")
        finally:
            self._loop_thread.stop()

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        async def on_the_loop() -> Any:
            return await settle(getattr(self._async, name)(*args, **options))

        return self._loop_thread.run(on_the_loop())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_async":
            raise AttributeError(name)
        found = getattr(self._async, name)
        if inspect.iscoroutinefunction(found):
            return lambda *args, **options: self._call(name, *args, **options)
        if callable(found) and not name.startswith("_"):
            return lambda *args, **options: self._resolved(found(*args, **options))
        return found

    def _resolved(self, value: Any) -> Any:
        return self._loop_thread.run(settle(value)) if isinstance(value, Awaitable) else value

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()
