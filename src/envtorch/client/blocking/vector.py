"""`VectorEnv`: many sessions of one environment, stepped together over one socket."""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from envtorch.client.blocking.links import give_back
from envtorch.client.blocking.socket import BlockingShell
from envtorch.client.client_options import ClientOptions, GivenOptions
from envtorch.client.guard import UseGuard
from envtorch.client.translation import Translation
from envtorch.client.vector_flows import Autoreset, VectorFlows, options_by_place
from envtorch.client.vector_results import Outcome, VectorResult
from envtorch.errors import ClientBusy
from envtorch.protocol.flow import drive
from envtorch.protocol.reconnect import SocketFlow
from envtorch.shown_urls import shown_url
from envtorch.types import ActT, ObsT, StateT

__all__ = ["VectorEnv"]

T = TypeVar("T")


class VectorEnv(Generic[ActT, ObsT, StateT]):
    """`count` sessions on one socket: one frame out, and as few as possible back.

        with MyEnv.vector("http://127.0.0.1:8000", 256) as envs:
            result = envs.reset(seed=7)               # seeds 7, 8, 9, ...
            result = envs.step([MyAction(...)] * 256)
            result.rewards, result.dones, result.observations, result[3]

    `step_async` and `step_wait` are the two halves of `step`. For sessions of different speed there are
    `send` and `receive`, which take any of them and return what is there, and `as_completed`.

    A failure is one session's own: its error is in `result.errors`, its reward is None, and the others go on.
    This holds for a call that times out and for a session that is lost. A lost session stays lost until a
    `reset` opens another in its place.

    `autoreset` says what happens to an episode that is over: nothing ("disabled"); its next step resets it
    instead ("next_step"); or the step that ended it resets it too, and `result.final` has how it ended
    ("same_step"). These are Gymnasium's modes. A session that failed is not over: autoreset leaves it alone,
    and its next step is a step.

    Like every client, a vector survives its socket, steps happen exactly once, and an object is for one
    thread at a time and for the process that made it. `MyEnv.aio.vector(...)` is the async twin.
    """

    def __init__(
        self,
        translation: Translation[ActT, ObsT, StateT],
        base_url: str,
        count: int,
        *,
        autoreset: Autoreset = "disabled",
        **options: Unpack[GivenOptions],
    ) -> None:
        self._options = ClientOptions.of(base_url, **options)
        self._flows = VectorFlows(translation, self._options, count, autoreset)
        self._shell = BlockingShell(self._options)
        self._guard = UseGuard("vector", harmless=Exception)  # methods of a subclass may raise any
        self._finalizer = weakref.finalize(self, give_back, self._shell, self._flows, self._guard)
        try:
            self._run(self._flows.open())
        except BaseException:
            self._shell.drop()
            raise

    def __len__(self) -> int:
        return self._flows.count

    # All sessions together.

    @overload
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> VectorResult[ObsT]: ...
    @overload
    def reset(
        self,
        places: Mapping[int, Mapping[str, Any]],
        *,
        seed: int | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> dict[int, Outcome[ObsT]]: ...
    def reset(
        self,
        places: Mapping[int, Mapping[str, Any]] | None = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> VectorResult[ObsT] | dict[int, Outcome[ObsT]]:
        """Begin an episode in every session. One seed gives each session its own: seed, seed + 1, ...

        `reset({3: {"seed": 7}, 5: {}})` resets some of the sessions, each with options of its own beside the
        common `options`, and returns their outcomes. Autoreset uses a session's last options again, without
        the seed. A session that was lost or ended is replaced by a new one.
        """
        if places is None:
            return self._run(self._flows.reset(seed, options, timeout_s))
        given = options_by_place(places, seed, options)
        return self._run(self._flows.reset_some(given, timeout_s))

    def step(
        self, actions: Sequence[ActT] | Mapping[str, Any], *, timeout_s: float | None = None
    ) -> VectorResult[ObsT]:
        """One action for every session, in order.

        Actions may also be given as columns: a list or an array for each of their fields, by name.
        """
        return self._run(self._flows.step(actions, timeout_s))

    def step_async(
        self, actions: Sequence[ActT] | Mapping[str, Any], *, timeout_s: float | None = None
    ) -> None:
        """Send the actions; `step_wait` returns their results."""
        self._run(self._flows.start(actions, timeout_s))

    def step_wait(self) -> VectorResult[ObsT]:
        """The results of `step_async`, when all of them are there."""
        return self._run(self._flows.wait())

    def state(self, *, timeout_s: float | None = None) -> list[StateT]:
        """Where every episode stands. Raises the error of a session that cannot tell."""
        return self._run(self._flows.state(timeout_s))

    # Some sessions, each at its own speed.

    def send(self, actions: Mapping[int, ActT], *, timeout_s: float | None = None) -> None:
        """Send actions to some of the sessions, by number. One that has not answered yet is refused."""
        self._run(self._flows.send(actions, timeout_s))

    def receive(self, at_least: int = 1) -> dict[int, Outcome[ObsT]]:
        """What has arrived, by session: `at_least` so many results or errors, and whatever is there with
        them."""
        return self._run(self._flows.receive(at_least))

    def as_completed(
        self, actions: Mapping[int, ActT] | None = None, *, timeout_s: float | None = None
    ) -> Iterator[tuple[int, Outcome[ObsT]]]:
        """Outcomes as they arrive, each with the number of its session, until none is outstanding.

        `actions` are sent first, as by `send`; more may be sent on the way.
        """
        if actions is not None:
            self.send(actions, timeout_s=timeout_s)
        while self._flows.outstanding:
            yield from self.receive().items()

    def fork(self, place: int, n: int = 1, *, timeout_s: float | None = None) -> list[int]:
        """Copy one session as it is now; the numbers of the copies, which join this vector at its end."""
        return self._run(self._flows.fork(place, n, timeout_s))

    def end(self, places: Iterable[int]) -> None:
        """End some of the sessions, so that their slots are free. `reset({place: {}})` opens another
        there."""
        self._run(self._flows.end(places))

    def close(self) -> None:
        """End every session. Only `reset` may be called afterwards: it opens new ones."""
        if self._guard.is_at_home:
            self._run(self._flows.close())
        else:
            self._shell.forget()

    def _run(self, flow: SocketFlow[T]) -> T:
        with self._guard as was_interrupted:
            if was_interrupted or self._flows.was_left:
                drive(self._flows.interrupted(), self._shell.act)
            interruptions = self._flows.interruptions
            result = drive(flow, self._shell.act)
            if self._flows.interruptions != interruptions:
                raise ClientBusy.interrupted()
            return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} on {shown_url(self._options.base_url)}>"
