"""The blocking pool."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from envtorch.errors import EnvTorchError, SessionLost
from envtorch.pool.leases import OUTAGE_S, Search, granted
from envtorch.pool.outcomes import Outcome, Playing, episode
from envtorch.pool.roster import Batch, Replica
from envtorch.pool.server_pool import ServerPool
from envtorch.protocol.flow import drive

__all__ = ["EnvPool"]

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
Errors = tuple[type[EnvTorchError], ...]


class Connectable(Protocol):
    """What a pool needs of a client."""

    def connect(self) -> Any: ...
    def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=Connectable)


class EnvPool(ServerPool[ClientT]):
    """N sessions over M servers, which are replaced when they die.

        with EnvPool(EchoEnv, "docker", "echo-env:latest", replicas=4, sessions_per_replica=16) as pool:
            with pool.session() as env:         # waits while every session is taken
                env.reset()
            for outcome in pool.run(play, tasks):
                ...

    `client` makes a client out of an address and `client_options`: a client class, or a function.
    `provider` makes a provider for one server: a class, a function, or a name. `start` holds the
    options of the provider's start; the rest are those of `PoolOptions`. Threads may share a pool.

    With `replicas=(2, 16)` the pool grows while callers wait for a session and shrinks when fewer servers
    would do. A server leaves when its sessions have ended, copies of them (`fork`) included.

    With `recover="replay"`, an episode whose server dies is played again on another replica, and goes on
    there; see `ClientOptions`.
    """

    def open(self) -> Self:
        """Start the servers. A session can be asked for at once: it waits for the first to be ready."""
        self._keeper.open()
        return self

    def close(self) -> None:
        """Stop every server; sessions that are still in use are lost. In a process that inherited the pool
        over `os.fork`, nothing happens."""
        if self._home.is_at_home:
            self._keeper.close()

    @contextmanager
    def session(self, *, timeout_s: float | None = None, outage_s: float = 0.0) -> Iterator[ClientT]:
        """A session on the server with the most room. Waits in a queue while all are taken. A server that
        cannot be reached is passed over, and so is a second one.

        Raises `TimedOut` if its turn does not come in time, `CapacityReached` when too many wait, why the
        third server could not be reached, and the reason itself when no server could be started for
        `outage_s`; at once in a pool that has never had one.
        """
        with self._session(timeout_s, Batch(outage_s)) as client:
            yield client

    @contextmanager
    def _session(self, timeout_s: float | None, batch: Batch) -> Iterator[ClientT]:
        client, held = self._connected(Search(timeout_s, batch))
        with held:
            yield client

    def _connected(self, search: Search) -> tuple[ClientT, ExitStack]:
        """A client that is connected, on the first server that can be reached, and what gives it back."""
        while True:
            with ExitStack() as held:
                lease = held.enter_context(self._leased(self._acquire(search)))
                client = self._client_of(lease)
                held.callback(client.close)
                try:
                    client.connect()
                except EnvTorchError as error:
                    if not search.goes_on(lease.replica, error):
                        raise
                    lease.suspect()
                else:
                    return client, held.pop_all()

    def run(
        self,
        play: Callable[[ClientT, ItemT], ResultT],
        items: Iterable[ItemT],
        *,
        attempts: int = 3,
        retry_on: Errors = (),
        outage_s: float = OUTAGE_S,
    ) -> Iterator[Outcome[ItemT, ResultT]]:
        """Play an episode for each item, as many at once as there are sessions; outcomes as they come.

        Every item has exactly one outcome. An episode that is lost to the infrastructure is played again from
        its beginning, up to `attempts` times in all; any other error is its outcome. A step of which the
        server says that it timed out or ran out of memory is the policy's: where it is not,
        `retry_on=(TimedOut, OutOfResources)` plays those again, too.

        While the pool has no server and can start none, episodes wait; after `outage_s` of that they fail.
        Left early, `run` waits for the episodes that are being played; those that wait for a session do not
        begin.
        """
        waiting: set[Future[Outcome[ItemT, ResultT]]] = set()
        batch = Batch(outage_s)
        with ThreadPoolExecutor(self.capacity, thread_name_prefix="envtorch-episode") as threads:
            try:
                for item in items:
                    waiting.add(threads.submit(self._play, play, item, attempts, retry_on, batch))
                    if len(waiting) >= self.capacity:  # no item is taken before there is room for it
                        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                        yield from (episode.result() for episode in done)
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (episode.result() for episode in done)
            finally:
                self._keeper.end(batch, SessionLost("the run was left before this episode began"))

    def _play(
        self,
        play: Callable[[ClientT, ItemT], ResultT],
        item: ItemT,
        limit: int,
        retry_on: Errors,
        batch: Batch,
    ) -> Outcome[ItemT, ResultT]:
        def attempt(playing: Playing[ResultT]) -> None:
            with self._session(None, batch) as client:
                playing.over(play(client, item))

        return drive(episode(item, limit, retry_on), attempt)

    def _acquire(self, search: Search) -> Replica:
        self._home.require()
        return granted(self._keeper, search)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
