"""What the two pools have in common: everything that neither blocks nor awaits."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from envtorch.client.client_options import Recovery
from envtorch.client.guard import ProcessGuard
from envtorch.client.launch import Starter
from envtorch.errors import EnvTorchError
from envtorch.pool.leases import Lease
from envtorch.pool.outcomes import is_infrastructure
from envtorch.pool.replica_keeper import CLIENT_OPTIONS, Keeper, PoolOptions, PoolStatus
from envtorch.pool.roster import Replica
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
        if recover is not None:
            client_options = {**client_options, "recover": recover}
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

    @contextmanager
    def _client_on(self, replica: Replica) -> Iterator[ClientT]:
        """A client of a server that was granted. Its place is given back, and a fault told to the keeper."""
        lease = Lease(self._keeper, replica)
        try:
            yield self.make_client(replica.url, **({"elsewhere": lease} if self.recovers else {}))
        except EnvTorchError as error:
            if is_infrastructure(error):
                self._keeper.suspect(lease.replica)
            raise
        finally:
            lease.end()
