"""`MyEnv.aio`, which imports asyncio only when it is used."""

from typing import TYPE_CHECKING

from envtorch.types import ActT, ObsT, StateT

if TYPE_CHECKING:
    from envtorch.client.aio.client import AsyncFactory
    from envtorch.client.blocking.client import EnvClient

__all__ = ["AsyncTwin"]


class AsyncTwin:
    """`MyEnv.aio`: makes async clients that speak with `MyEnv`'s classes and translation."""

    def __get__(
        self, instance: object, owner: "type[EnvClient[ActT, ObsT, StateT]]"
    ) -> "AsyncFactory[ActT, ObsT, StateT]":
        from envtorch.client.aio.client import AsyncFactory

        return AsyncFactory(owner)
