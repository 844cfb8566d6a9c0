"""`VectorEnv`: many sessions of one environment, stepped together over one socket."""

from collections.abc import Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Any, Generic, Literal, Self, Unpack

from envtorch.client.hooks import Hooks
from envtorch.client.options import ClientOptions, GivenOptions
from envtorch.client.vector_actions import Outgoing, OutgoingColumns, OutgoingRows, rows_in
from envtorch.client.vector_link import VectorLink
from envtorch.client.vector_results import VectorResult
from envtorch.client.vector_take import Collector, Interest
from envtorch.errors import ConfigurationError, EnvTorchError, InvalidAction
from envtorch.protocol.encoding import encode_value
from envtorch.types import ActT, ObsT, StateT, StepResult

__all__ = ["Autoreset", "VectorEnv"]

Autoreset = Literal["disabled", "next_step", "same_step"]


class VectorEnv(Generic[ActT, ObsT, StateT]):
    """`count` sessions on one socket: one frame out, and as few as possible back.

        with MyEnv.vector("http://127.0.0.1:8000", 256) as envs:
            result = envs.reset(seed=7)               # seeds 7, 8, 9, ...
            result = envs.step([MyAction(...)] * 256)
            result.rewards, result.dones, result.observations, result[3]

    `step_async` and `step_wait` are the two halves of `step`. `send` and `receive` are for sessions of
    different speed: they take any of them, and give what is there. Like every client, a vector survives its
    socket, steps happen exactly once, and an object is for one thread at a time.

    `autoreset` is what becomes of an episode that is over: nothing ("disabled"); its next step begins a new
    one instead ("next_step"); or the step that ended it does, and how it ended is in `result.final`
    ("same_step"). These are Gymnasium's modes.
    """

    def __init__(
        self,
        hooks: Hooks[ActT, ObsT, StateT],
        base_url: str,
        count: int,
        *,
        autoreset: Autoreset = "disabled",
        **options: Unpack[GivenOptions],
    ) -> None:
        if count < 1:
            raise ConfigurationError(f"a vector has one session or more, not {count}")
        if autoreset not in ("disabled", "next_step", "same_step"):
            raise ConfigurationError(
                f"autoreset is 'disabled', 'next_step' or 'same_step', not {autoreset!r}"
            )
        self._hooks = hooks
        self._autoreset = autoreset
        self._options = ClientOptions.of(base_url, **options)
        self._count = count
        self._link = VectorLink(self._options, count)
        self._everybody = list(range(count))
        self._interest = Interest()
        self._collector: Collector[ObsT] | None = None
        self._over: set[int] = set()
        self._reset_options: dict[str, Any] = {}

    def __len__(self) -> int:
        return self._count

    # Together.

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> VectorResult[ObsT]:
        """Begin an episode in every session. One seed gives each session its own: seed, seed + 1, ...

        `options` go to every environment's `reset`, and are used again by autoreset, without the seed.
        """
        self._reset_options = options
        seeds = _seeds(seed, self._count)
        format = self._link.sessions.format
        data = {
            place: encode_value(options | ({} if one is None else {"seed": one}), format, blame=InvalidAction)
            for place, one in enumerate(seeds)
        }
        self._over.clear()
        return self._ask(self._link.sessions.each("reset", data), timeout_s)

    def step(
        self, actions: Sequence[ActT] | Mapping[str, Any], *, timeout_s: float | None = None
    ) -> VectorResult[ObsT]:
        """One action for every session, in order.

        Actions may also be given as columns: a list or an array for each of their fields, by name.
        """
        self.step_async(actions, timeout_s=timeout_s)
        return self.step_wait()

    def step_async(
        self, actions: Sequence[ActT] | Mapping[str, Any], *, timeout_s: float | None = None
    ) -> None:
        """Send the actions; `step_wait` gives what comes of them."""
        outgoing: Outgoing
        if isinstance(actions, Mapping):
            outgoing = self._columns(actions)
        elif len(actions) != self._count:
            raise InvalidAction(f"a vector of {self._count} takes as many actions, not {len(actions)}")
        else:
            outgoing = self._rows(actions)
        if self._over and self._autoreset == "next_step":
            rows: Any = rows_in(actions, self._count) if isinstance(actions, Mapping) else actions
            self.send(dict(enumerate(rows)), timeout_s=timeout_s)
        else:
            self._start(self._everybody, outgoing, timeout_s)

    def step_wait(self) -> VectorResult[ObsT]:
        """The results of `step_async`, when all of them are there."""
        collector = self._started()
        for arrived in self._link.answers():
            collector.take(arrived, more_to_come=self._link.sessions.owed > 0)
        result = collector.result()
        self._collector = None
        return self._renewed(result)

    # Each at its own speed.

    def send(self, actions: Mapping[int, ActT], *, timeout_s: float | None = None) -> None:
        """Send actions to some of the sessions, by number; those that have not answered yet are refused."""
        for place in actions:
            if not 0 <= place < self._count or self._link.sessions.is_owed(place):
                raise InvalidAction(f"session {place} still has to answer, or there is none")
        anew = [place for place in actions if place in self._over and self._autoreset == "next_step"]
        places = [place for place in actions if place not in anew]
        if places:
            self._start(places, self._rows([actions[place] for place in places]), timeout_s)
        if anew:
            self._collect()
            self._link.ask(self._reset_frame(anew), timeout_s)
            self._over.difference_update(anew)

    def receive(self, at_least: int = 1) -> dict[int, StepResult[ObsT] | EnvTorchError]:
        """What has come, by session: `at_least` so many, and whatever is there with them."""
        collector = self._started()
        for arrived in self._link.answers():
            collector.take(arrived)
            if len(collector.fresh) >= at_least:
                break
        came = {place: collector.one(place) for place in collector.taken_fresh()}
        if not self._link.sessions.owed:
            self._collector = None
        for place, result in came.items():
            if isinstance(result, StepResult) and result.done:
                self._over.add(place)
        return came

    def state(self, *, timeout_s: float | None = None) -> list[StateT]:
        """Where every episode stands."""
        format = self._link.sessions.format
        data = dict.fromkeys(range(self._count), format.write({}))
        states: dict[int, StateT] = {}
        self._link.ask(self._link.sessions.each("state", data), timeout_s)
        for arrived in chain.from_iterable(self._link.answers()):
            if arrived.error is not None:
                raise arrived.error
            assert arrived.payload is not None
            states[arrived.channels[0]] = self._hooks.parse_state(format.read(bytes(arrived.payload)))
        return [states[place] for place in range(self._count)]

    def close(self) -> None:
        """End every session."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._count} on {self._options.base_url}>"

    # Asking, and beginning anew.

    def _start(self, places: Sequence[int], actions: Outgoing, timeout_s: float | None) -> None:
        def one(place: int) -> bytes:
            return actions.one(places.index(place))

        parts = [(places[part], actions.data(part)) for part in actions.parts()]  # all, or none is sent
        self._collect()
        for channels, data in parts:
            self._link.ask(self._link.sessions.steps(channels, data, one), timeout_s)

    def _rows(self, actions: Sequence[ActT]) -> OutgoingRows:
        sessions = self._link.sessions
        return OutgoingRows(self._hooks, sessions.format, actions, together="together" in sessions.supports)

    def _columns(self, columns: Mapping[str, Any]) -> OutgoingColumns:
        return OutgoingColumns(self._link.sessions.format, columns, self._count)

    def _collect(self) -> None:
        if self._collector is None:
            format = self._link.sessions.format
            self._collector = Collector(self._hooks, format, self._count, self._interest)

    def _started(self) -> "Collector[ObsT]":
        if self._collector is None:
            raise InvalidAction("nothing was sent that could be waited for")
        return self._collector

    def _ask(self, frame: bytes, timeout_s: float | None) -> VectorResult[ObsT]:
        collector = Collector(self._hooks, self._link.sessions.format, self._count)
        self._link.ask(frame, timeout_s)
        for arrived in self._link.answers():
            collector.take(arrived)
        return collector.result()

    def _reset_frame(self, places: Sequence[int]) -> bytes:
        data = encode_value(self._reset_options, self._link.sessions.format, blame=InvalidAction)
        return self._link.sessions.each("reset", dict.fromkeys(places, data))

    def _renewed(self, result: VectorResult[ObsT]) -> VectorResult[ObsT]:
        """What autoreset makes of a result."""
        over = {place for place, done in enumerate(result.dones) if done} if True in result.dones else set()
        if self._autoreset != "same_step" or not over:
            self._over = over
            return result
        final = {place: result[place] for place in over if place not in result.errors}
        begun = self._ask(self._reset_frame(sorted(over)), None)
        return Collector.merged(result, begun, final)


def _seeds(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    if seed is None:
        return [None] * count
    if isinstance(seed, int):
        return [seed + place for place in range(count)]
    if len(seed) != count:
        raise InvalidAction(f"a vector of {count} takes one seed or as many, not {len(seed)}")
    return list(seed)
