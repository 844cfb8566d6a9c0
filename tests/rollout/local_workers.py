"""Workers of rollouts in this process: what is sent between them is pickled, and they can be killed."""

import asyncio
import pickle
from collections.abc import Mapping
from typing import Any

from envtorch.env import load_object
from envtorch.errors import ProviderFailed


class LocalWorker:
    def __init__(self, path: str, near: str) -> None:
        self.is_lost = False
        self.near = near
        self.calls: list[str] = []
        self._object = load_object(path)()
        self._running: set[asyncio.Task[Any]] = set()

    async def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        if self.is_lost:
            raise ProviderFailed("the worker is gone")
        sent = pickle.loads(pickle.dumps(arguments))
        task = asyncio.create_task(getattr(self._object, method)(*sent))
        self._running.add(task)
        try:
            return pickle.loads(pickle.dumps(await task))
        except asyncio.CancelledError:
            if not self.is_lost:
                raise
            raise ProviderFailed("the worker was killed") from None
        finally:
            self._running.discard(task)

    def kill(self) -> None:
        self.is_lost = True
        for task in self._running:
            task.cancel()


class LocalWorkers:
    def __init__(self) -> None:
        self.started: list[LocalWorker] = []

    def pack(self, parts: Mapping[str, Any]) -> bytes:
        return pickle.dumps(dict(parts))

    async def start(self, path: str, *, near: str) -> LocalWorker:
        self.started.append(LocalWorker(path, near))
        return self.started[-1]

    @property
    def living(self) -> list[LocalWorker]:
        return [worker for worker in self.started if not worker.is_lost]
