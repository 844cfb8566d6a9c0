"""`MyEnv.aio`, without the event loop that a blocking client has no use for until somebody asks."""

from typing import TYPE_CHECKING

from envtorch.types import ActT, ObsT, StateT

if TYPE_CHECKING:
    from envtorch.client.aio import AsyncFactory
    from envtorch.client.sync import EnvClient

__all__ = ["AsyncTwin"]


class AsyncTwin:
    """`MyEnv.aio`: makes async clients that speak with `MyEnv`'s classes and hooks."""

    def __get__(
        self, instance: object, owner: "type[EnvClient[ActT, ObsT, StateT]]"
    ) -> "AsyncFactory[ActT, ObsT, StateT]":
        from envtorch.client.aio import AsyncFactory

        return AsyncFactory(owner)
