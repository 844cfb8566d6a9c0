"""The blocking pool."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from envtorch.client.launch import Starter
from envtorch.errors import EnvTorchError, TimedOut
from envtorch.pool.keeper import CLIENT_OPTIONS, Keeper, PoolOptions, PoolStatus
from envtorch.pool.outcomes import Attempts, Failed, Finished, Outcome, is_infrastructure
from envtorch.pool.roster import Replica
from envtorch.providers.options import read_options

__all__ = ["EnvPool"]

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Connectable(Protocol):
    """What a pool needs of a client."""

    def connect(self) -> Any: ...
    def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=Connectable)


class EnvPool(Generic[ClientT]):
    """N sessions over M servers, which are replaced when they die.

        with EnvPool(EchoEnv, "docker", "echo-env:latest", replicas=4, sessions_per_replica=16) as pool:
            with pool.session() as env:         # waits while every session is taken
                env.reset()
            for outcome in pool.run(play, tasks):
                ...

    `client` makes a client out of an address and `client_options`: a client class, or a function.
    `provider` makes a provider for one server: a class, a function, or a name. `start` holds the
    options of the provider's start; the rest are those of `PoolOptions`. Threads may share a pool.
    """

    def __init__(
        self,
        client: Callable[..., ClientT],
        provider: Callable[[], Starter] | str,
        image: str = "",
        *,
        start: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] = CLIENT_OPTIONS,
        **options: Any,
    ) -> None:
        self._client = partial(client, **client_options)
        self._options = read_options(PoolOptions, options)
        self._keeper = Keeper(provider, image, start or {}, self._options)

    def open(self) -> Self:
        """Start the servers. A session can be asked for at once: it waits for the first to be ready."""
        self._keeper.open()
        return self

    def close(self) -> None:
        """Stop every server; sessions that are still in use are lost."""
        self._keeper.close()

    @property
    def capacity(self) -> int:
        """How many sessions there are when every server is ready."""
        return self._options.replicas * self._options.sessions_per_replica

    def status(self) -> PoolStatus:
        return self._keeper.status()

    @contextmanager
    def session(self, *, timeout_s: float | None = None) -> Iterator[ClientT]:
        """A session on the server with most room. Waits its turn while all are taken.

        Raises `TimedOut` if its turn does not come in time, `CapacityReached` when too many wait, and
        the reason itself when no server could be started.
        """
        replica = self._acquire(timeout_s)
        try:
            client = self._client(replica.url)
            try:
                client.connect()
                yield client
            finally:
                client.close()
        except EnvTorchError as error:
            if is_infrastructure(error):
                self._keeper.suspect(replica)
            raise
        finally:
            self._keeper.give_back(replica)

    def run(
        self,
        play: Callable[[ClientT, ItemT], ResultT],
        items: Iterable[ItemT],
        *,
        attempts: int = 3,
    ) -> Iterator[Outcome[ItemT, ResultT]]:
        """Play an episode for each item, as many at once as there are sessions; outcomes as they come.

        Every item has exactly one outcome. An episode that is lost to the infrastructure is played
        again from its beginning, up to `attempts` times in all; any other error is its outcome.
        """
        waiting: set[Future[Outcome[ItemT, ResultT]]] = set()
        with ThreadPoolExecutor(self.capacity, thread_name_prefix="envtorch-episode") as threads:
            for item in items:
                waiting.add(threads.submit(self._play, play, item, attempts))
                if len(waiting) >= self.capacity:  # no item is taken before there is room for it
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (episode.result() for episode in done)
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (episode.result() for episode in done)

    def _play(
        self, play: Callable[[ClientT, ItemT], ResultT], item: ItemT, limit: int
    ) -> Outcome[ItemT, ResultT]:
        attempts = Attempts(limit)
        while True:
            finished: Finished[ItemT, ResultT] | None = None
            try:
                with self.session() as client:
                    finished = Finished(item, play(client, item), attempts.lost)
            except Exception as error:  # `play` is the caller's: what it raises is the outcome
                if finished is None and not attempts.again_after(error):
                    return Failed(item, error, attempts.lost)
            if finished is not None:  # a session that broke while it was closed cost nothing
                return finished

    def _acquire(self, timeout_s: float | None) -> Replica:
        ticket = self._keeper.ask()
        try:
            return ticket.granted.result(timeout_s)
        except TimeoutError as error:
            if isinstance(error, EnvTorchError):
                raise  # no server could be started in time, which is another matter
            self._keeper.withdraw(ticket)
            raise TimedOut(f"no session was free within {timeout_s:g} s") from None
        except BaseException:
            if not ticket.granted.done() or ticket.granted.exception() is None:
                self._keeper.withdraw(ticket)
            raise

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
