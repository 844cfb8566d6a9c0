"""What the two pools have in common: everything that neither blocks nor awaits."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from envtorch.client import EnvClient
from envtorch.client.aio.client import AsyncFactory
from envtorch.client.client_options import ClientOptions, Recovery
from envtorch.client.guard import ProcessGuard
from envtorch.client.launch import Starter
from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.pool.leases import Lease
from envtorch.pool.outcomes import is_infrastructure
from envtorch.pool.replica_keeper import CLIENT_OPTIONS, Keeper, PoolOptions, PoolStatus
from envtorch.pool.roster import Replica
from envtorch.protocol.arguments import shown
from envtorch.providers.provider_options import read_options

__all__ = ["ServerPool"]

ClientT = TypeVar("ClientT")


class ServerPool(Generic[ClientT]):
    """N sessions over M servers; `EnvPool` and `AsyncEnvPool` say how they are waited for."""

    def __init__(
        self,
        client: Callable[..., ClientT],
        provider: Callable[[], Starter] | str,
        image: str = "",
        *,
        start: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] = CLIENT_OPTIONS,
        recover: Recovery | None = None,
        **options: Any,
    ) -> None:
        if not callable(client):
            raise ConfigurationError(
                f"a pool makes its clients with a client class or a function, not {shown(client)}"
            )
        if recover is not None:
            client_options = {**client_options, "recover": recover}
        _require_client_options(client, client_options)
        self.make_client: Callable[..., ClientT] = partial(client, **client_options)
        """Makes a client of an address, as this pool's clients are made."""
        self.recovers = client_options.get("recover") is not None
        """Whether its clients take their lease as `elsewhere`."""
        self._options = read_options(PoolOptions, options)
        self._keeper = Keeper(provider, image, start or {}, self._options)
        self._home = ProcessGuard("pool")

    @property
    def capacity(self) -> int:
        """How many sessions there are when there are as many servers as there may be, and all are ready."""
        return self._options.limits.most * self._options.sessions_per_replica

    def status(self) -> PoolStatus:
        return self._keeper.status()

    def _client_of(self, lease: Lease) -> ClientT:
        return self.make_client(lease.replica.url, **({"elsewhere": lease} if self.recovers else {}))

    @contextmanager
    def _leased(self, replica: Replica) -> Iterator[Lease]:
        """A place on a server that was granted. It is given back, and a fault told to the keeper."""
        lease = Lease(self._keeper, replica)
        try:
            yield lease
        except EnvTorchError as error:
            if is_infrastructure(error):
                lease.suspect()
            raise
        finally:
            lease.end()


def _require_client_options(client: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` for what a client of this kind would not be made with."""
    made = client.client if isinstance(client, AsyncFactory) else client
    if getattr(made, "__init__", None) is EnvClient.__init__:
        ClientOptions.of("http://127.0.0.1", **{k: v for k, v in options.items() if k != "provider"})
        return
    try:
        inspect.signature(made).bind("http://127.0.0.1", **options)
    except TypeError as error:
        raise ConfigurationError(
            f"{client!r} cannot be called with an address and client_options: {error}"
        ) from None
    except ValueError:
        pass  # it does not tell its arguments
