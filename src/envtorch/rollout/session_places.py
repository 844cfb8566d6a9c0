"""Where rollouts open their sessions: at addresses, or in a pool."""

import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from envtorch.client import EnvClient
from envtorch.client.client_options import Recovery
from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.pool import AsyncEnvPool, EnvPool
from envtorch.pool.leases import OUTAGE_S
from envtorch.pool.outcomes import is_infrastructure
from envtorch.protocol.arguments import shown
from envtorch.providers.provider_base import Provider
from envtorch.rollout.beginnings import RolloutClient
from envtorch.types import StepResult

__all__ = ["AddressPlaces", "PoolPlaces", "PooledClient", "RolloutServers", "places_of"]

T = TypeVar("T")

AVOIDED_S = 30.0
"""How long an address that refused a session is avoided while there are others."""

RolloutServers = str | Provider | Sequence[str | Provider] | AsyncEnvPool[Any]
"""An address, a provider whose server runs, several of these, or a pool that is open."""


def places_of(
    where: RolloutServers,
    client: type[EnvClient[Any, Any, Any]],
    options: Mapping[str, Any],
    recover: Recovery | None = None,
) -> "AddressPlaces | PoolPlaces":
    """The places that `where` names. Raises `ConfigurationError` for what is none."""
    if isinstance(where, AsyncEnvPool):
        if recover is not None:
            raise ConfigurationError("the clients of a pool recover as the pool says: give it `recover`")
        return PoolPlaces(where)
    if isinstance(where, EnvPool):
        raise ConfigurationError("rollouts are awaited: give them an AsyncEnvPool of the client's `aio`")
    servers = [where] if isinstance(where, str | Provider) else where
    if not isinstance(servers, Sequence) or not all(isinstance(one, str | Provider) for one in servers):
        raise ConfigurationError(
            f"where is {shown(where)}: give the address of a server, such as http://127.0.0.1:8000, a list "
            "of addresses, or an open AsyncEnvPool"
        )
    if not servers:
        raise ConfigurationError("there is no server to play on: `where` is empty")
    addresses = [_address_of(server) for server in servers]
    if recover is not None:
        options = {"elsewhere": addresses, **options, "recover": recover}
    return AddressPlaces(addresses, client, options)


def _address_of(server: str | Provider) -> str:
    if isinstance(server, str):
        return server
    if server.base_url is None:
        raise ConfigurationError(
            f"this {type(server).__name__} runs no server: start it first, or give an AsyncEnvPool"
        )
    return server.base_url


class AddressPlaces:
    """Servers in turn, without those that have just refused a session while there are others."""

    def __init__(
        self, addresses: Sequence[str], client: type[EnvClient[Any, Any, Any]], options: Mapping[str, Any]
    ) -> None:
        self.addresses = addresses
        self._client = client
        self._options = options
        self._avoided_until: dict[str, float] = {}

    async def open(self, number: int, attempt: int, lost_at: Sequence[str]) -> RolloutClient:
        first, now = (number + attempt) % len(self.addresses), time.monotonic()
        in_turn = [*self.addresses[first:], *self.addresses[:first]]
        address = min(in_turn, key=lambda one: (self._avoided_until.get(one, now) > now, lost_at.count(one)))
        client: RolloutClient = self._client.aio(address, **self._options)
        return client

    def avoid(self, address: str) -> None:
        self._avoided_until[address] = time.monotonic() + AVOIDED_S


class PoolPlaces:
    """The servers of a pool, the one with the most room first."""

    def __init__(self, pool: AsyncEnvPool[Any]) -> None:
        self.pool = pool

    async def open(self, number: int, attempt: int, lost_at: Sequence[str]) -> RolloutClient:
        lease = self.pool.session(outage_s=OUTAGE_S)
        return PooledClient(await lease.__aenter__(), lease)

    def avoid(self, address: str) -> None: ...  # the pool sees to it


class PooledClient:
    """A client of a pool's session. Closing gives it back, and tells the pool of a server's fault."""

    def __init__(self, client: Any, lease: AbstractAsyncContextManager[Any]) -> None:
        self._client = client
        self._lease: AbstractAsyncContextManager[Any] | None = lease
        self._fault: EnvTorchError | None = None

    @property
    def base_url(self) -> str:
        address: str = self._client.base_url
        return address

    async def reset(self, *, timeout_s: float | None = None, **options: Any) -> StepResult[Any]:
        return await self._watched(self._client.reset(timeout_s=timeout_s, **options))

    async def step(self, action: Any, *, timeout_s: float | None = None) -> StepResult[Any]:
        return await self._watched(self._client.step(action, timeout_s=timeout_s))

    async def state(self, *, timeout_s: float | None = None) -> Any:
        return await self._watched(self._client.state(timeout_s=timeout_s))

    async def list_tools(self) -> Any:
        return await self._watched(self._client.list_tools())

    async def fork(self, n: int = 1, *, timeout_s: float | None = None) -> Any:
        return await self._watched(self._client.fork(n, timeout_s=timeout_s))

    async def close(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            fault = self._fault
            await lease.__aexit__(type(fault) if fault is not None else None, fault, None)

    async def _watched(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except EnvTorchError as error:
            if is_infrastructure(error):
                self._fault = error
            raise
