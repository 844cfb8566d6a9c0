"""What a vector does, as flows; `blocking.vector` and `aio.vector` drive them."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, Generic, Literal

from pydantic import BaseModel

from envtorch.client.client_options import ClientOptions
from envtorch.client.opening import open_vector
from envtorch.client.translation import Translation, encode_options
from envtorch.client.vector_actions import Outgoing, OutgoingColumns, OutgoingRows, rows_in
from envtorch.client.vector_collect import Collector, DecodingHints
from envtorch.client.vector_results import Outcome, VectorResult
from envtorch.client.vector_sessions import VectorSessions
from envtorch.errors import ClientBusy, ClientClosed, ConfigurationError, InvalidAction
from envtorch.protocol.arguments import is_whole, shown, timeout_of
from envtorch.protocol.batch import Steps
from envtorch.protocol.channel import Arrived
from envtorch.protocol.extended import MOST_IN_FRAME
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.reconnect import SocketFlow
from envtorch.protocol.requests import ask_fork, copies_of
from envtorch.protocol.wire import Answer
from envtorch.types import ActT, ObsT, StateT, StepResult

__all__ = ["Autoreset", "VectorFlows", "options_by_place"]

Autoreset = Literal["disabled", "next_step", "same_step"]


class VectorFlows(Generic[ActT, ObsT, StateT]):
    """The sessions of a vector: what is asked of them, and what is still to arrive."""

    def __init__(
        self,
        translation: Translation[ActT, ObsT, StateT],
        options: ClientOptions,
        count: int,
        autoreset: Autoreset,
        unharmful: tuple[type[BaseException], ...] = (),
    ) -> None:
        if not is_whole(count) or count < 1:
            raise ConfigurationError(f"a vector has one session or more, not {shown(count)}")
        if count > MOST_IN_FRAME:
            raise ConfigurationError(
                f"a vector has up to {MOST_IN_FRAME:,} sessions, not {shown(count)}: make several"
            )
        if autoreset not in ("disabled", "next_step", "same_step"):
            raise ConfigurationError(
                f"autoreset is 'disabled', 'next_step' or 'same_step', not {autoreset!r}"
            )
        self.sessions: VectorSessions | None = None
        self.interruptions = 0
        self._translation = translation
        self._options = options
        self._first_count = int(count)
        self._autoreset = autoreset
        self._unharmful = unharmful
        self._is_closed = False
        self._hints = DecodingHints()
        self._collector: Collector[ObsT] | None = None
        self._over: set[int] = set()
        self._reset_options: dict[int, Mapping[str, Any]] = {}

    @property
    def count(self) -> int:
        """How many places there are: the sessions that were opened first, and those forked from them."""
        return self._first_count if self.sessions is None else len(self.sessions)

    @property
    def outstanding(self) -> bool:
        """Something was sent whose outcome has not been received."""
        return self._collector is not None

    def open(self) -> SocketFlow[VectorSessions]:
        """The sessions, opened if they are not."""
        if self.sessions is None:
            opening = open_vector(self._options, self._first_count, self._unharmful)
            self.sessions = yield from opening
        return self.sessions

    def farewell(self) -> bytes | None:
        return None if self.sessions is None else self.sessions.farewell()

    @property
    def format(self) -> Format:
        return JSON if self.sessions is None else self.sessions.format

    # All sessions together.

    def reset(
        self,
        seed: int | Sequence[int | None] | None,
        options: Mapping[str, Any],
        timeout_s: float | None,
    ) -> SocketFlow[VectorResult[ObsT]]:
        """Begin an episode in every session."""
        timeout_s = timeout_of(timeout_s)
        yield from self.open()
        self._require_nothing_owed(range(self.count))
        seeds = _seeds(seed, self.count)
        given = {place: _with_seed(options, seeds[place]) for place in range(self.count)}
        collector = yield from self._reset(given, timeout_s)
        self._reset_options = dict.fromkeys(given, options)
        return (yield from self._collected(collector)).result()

    def start(self, actions: Sequence[ActT] | Mapping[str, Any], timeout_s: float | None) -> SocketFlow[None]:
        """Send one action for every session."""
        timeout_s = timeout_of(timeout_s)
        sessions = self._opened()
        outgoing: Outgoing
        if isinstance(actions, Mapping):
            outgoing = OutgoingColumns(sessions.format, actions, self.count)
        elif isinstance(actions, str | bytes | BaseModel) or not isinstance(actions, Sized):
            raise InvalidAction(f"a vector of {self.count} takes a list of actions, not {shown(actions)}")
        elif len(actions) != self.count:
            raise InvalidAction(f"a vector of {self.count} takes as many actions, not {len(actions)}")
        else:
            outgoing = self._rows(actions)
        places = list(range(self.count))
        self._require_nothing_owed(places)
        begins_anew = self._over and self._autoreset == "next_step"
        if begins_anew or any(sessions.refusal(place) is not None for place in places):
            rows: Any = rows_in(actions, self.count) if isinstance(actions, Mapping) else actions
            yield from self.send(dict(enumerate(rows)), timeout_s)
        else:
            yield from self._start(places, outgoing, timeout_s)

    def step(
        self, actions: Sequence[ActT] | Mapping[str, Any], timeout_s: float | None
    ) -> SocketFlow[VectorResult[ObsT]]:
        """One action for every session, and the results."""
        yield from self.start(actions, timeout_s)
        return (yield from self.wait())

    def wait(self) -> SocketFlow[VectorResult[ObsT]]:
        """The results of `start`, when all of them are there."""
        collector = self._started()
        self._collector = None
        result = (yield from self._collected(collector)).result()
        return (yield from self._renewed(result))

    def state(self, timeout_s: float | None) -> SocketFlow[list[StateT]]:
        """Where every episode stands. Raises the error of a session that cannot tell."""
        timeout_s = timeout_of(timeout_s)
        sessions = self._opened()
        places = list(range(self.count))
        self._require_nothing_owed(places)
        for place in places:
            refusal = sessions.refusal(place)
            if refusal is not None:
                raise refusal
        data = dict.fromkeys(places, sessions.format.write({}))
        arrived = yield from self._ask_each("state", data, timeout_s)
        for one in arrived.values():
            if one.error is not None:
                raise one.error
        read = sessions.format.read
        return [self._translation.parse_state(read(bytes(arrived[place].payload))) for place in places]

    # Some sessions, each at its own speed.

    def reset_some(
        self, given: Mapping[int, Mapping[str, Any]], timeout_s: float | None
    ) -> SocketFlow[dict[int, Outcome[ObsT]]]:
        """Begin an episode in these sessions, each with options of its own."""
        timeout_s = timeout_of(timeout_s)
        yield from self.open()
        if not given:
            return {}
        self._require_nothing_owed(given)
        for place, options in given.items():
            self._reset_options[place] = {name: v for name, v in options.items() if name != "seed"}
        collector = yield from self._reset(given, timeout_s)
        return (yield from self._collected(collector, set(given))).taken_fresh()

    def send(self, actions: Mapping[int, ActT], timeout_s: float | None) -> SocketFlow[None]:
        """Send actions to some of the sessions. The outcome of one that is lost is why it is lost."""
        timeout_s = timeout_of(timeout_s)
        if not isinstance(actions, Mapping):
            raise InvalidAction(f"send() takes actions by session, as in {{3: action}}, not {shown(actions)}")
        sessions = self._opened()
        self._require_nothing_owed(actions)
        refused = {place: sessions.refusal(place) for place in actions}
        if actions and all(refused.values()):
            raise next(error for error in refused.values() if error is not None)
        asked = [place for place in actions if refused[place] is None]
        anew = [place for place in asked if place in self._over and self._autoreset == "next_step"]
        places = [place for place in asked if place not in anew]
        if places:
            yield from self._start(places, self._rows([actions[place] for place in places]), timeout_s)
        collector = self._collect()
        for place, error in refused.items():
            if error is not None:
                collector.fail(place, error)
        if anew:
            self._over.difference_update(anew)
            yield from self._send_resets(self._again(anew), timeout_s)

    def receive(self, at_least: int) -> SocketFlow[dict[int, Outcome[ObsT]]]:
        """What has arrived, by session: `at_least` so many, and whatever is there with them."""
        if not is_whole(at_least):
            raise InvalidAction(f"at_least is a whole number, not {shown(at_least)}")
        collector, sessions = self._started(), self._opened()
        self._collector = None  # unless it is still good for more
        while len(collector.fresh) < at_least and sessions.owed:
            for arrived in (yield from sessions.arrivals()):
                collector.take(arrived)
        if sessions.owed:
            self._collector = collector
        came = collector.taken_fresh()
        self._over |= {p for p, one in came.items() if isinstance(one, StepResult) and one.done}
        return came

    def fork(self, place: int, n: int, timeout_s: float | None) -> SocketFlow[list[int]]:
        """Copy one session; the places of the copies, which are further channels of the same socket."""
        count, timeout_s = copies_of(n), timeout_of(timeout_s)
        sessions = self._opened()
        self._require_nothing_owed([place])
        refusal = sessions.refusal(place)
        if refusal is not None:
            raise refusal
        asking = ask_fork(count, sessions.format)
        ask = next(asking)
        arrived = (yield from self._ask_each("fork", {place: ask.data}, timeout_s))[place]
        if arrived.error is not None:
            raise arrived.error
        try:
            asking.send(Answer(arrived.type, sessions.format.read(bytes(arrived.payload))))
            raise AssertionError("the flow asks once")
        except StopIteration as stop:
            tokens: list[str] = stop.value
        places = yield from sessions.attach(tokens, place, self._options.connect_timeout_s)
        self._reset_options.update(dict.fromkeys(places, self._reset_options.get(place, {})))
        return places

    def end(self, places: Iterable[int]) -> SocketFlow[None]:
        """End some of the sessions. Their places stay; a reset opens another session there."""
        sessions = self._opened()
        if isinstance(places, str | bytes) or not isinstance(places, Iterable):
            raise InvalidAction(f"end() takes the numbers of sessions, as in [3, 5], not {shown(places)}")
        ending = list(places)
        self._require_nothing_owed(ending)
        ending = sorted(set(ending))
        asked = yield from sessions.say_close(ending)
        yield from self._arrived_for(asked)
        sessions.closed(ending)
        self._over.difference_update(ending)

    @property
    def was_left(self) -> bool:
        """Something is owed that no call would receive: the one that asked for it did not come to its end."""
        return self._collector is None and self.sessions is not None and self.sessions.owed > 0

    def interrupted(self) -> SocketFlow[None]:
        """A call was left anywhere on its way: nobody waits for what it or any call before it asked."""
        self.interruptions += 1
        self._collector = None
        if self.sessions is not None:
            yield from self.sessions.interrupted()

    def close(self) -> SocketFlow[None]:
        """End every session."""
        self._is_closed, self._collector = True, None
        if self.sessions is not None:
            yield from self.sessions.close()

    # Asking.

    def _opened(self) -> VectorSessions:
        if self._is_closed:
            raise ClientClosed("the vector was closed; reset() opens new sessions")
        assert self.sessions is not None, "a vector is opened when it is made"
        return self.sessions

    def _require_nothing_owed(self, places: Iterable[int]) -> None:
        sessions = self.sessions
        assert sessions is not None
        for place in places:
            is_number = type(place) is int or is_whole(place)  # the first is what it is, and quick
            if not is_number or not 0 <= place < self.count:
                raise InvalidAction(f"there is no session {shown(place)}: the vector has {self.count}")
            if sessions.is_owed(place):
                raise InvalidAction(f"session {place} still has to answer")

    def _start(self, places: list[int], actions: Outgoing, timeout_s: float | None) -> SocketFlow[None]:
        sessions = self._opened()
        try:
            parts = [(places[part], actions.data(part)) for part in actions.parts()]
        except InvalidAction:
            if not isinstance(actions, OutgoingRows):
                raise
            refused = actions.refusals()
            if not 0 < len(refused) < len(places):
                raise
            yield from self._start_valid(places, actions, refused, timeout_s)
            return
        alone: dict[int, bytes] = {}  # filled when it is needed

        def one(place: int) -> bytes:
            """The action as the server has it from the request for all: a repeat has the same bytes."""
            if not alone:
                for channels, data in parts:
                    rows = Steps(channels, **data).rows(self.format)
                    alone.update(zip(channels, map(bytes, rows), strict=True))
            return alone[place]

        for channels, data in parts:  # all, or none is sent
            size = sum(len(bytes(raw)) for raw in data.values())
            sessions.channels.require_size(size, len(channels))
        self._collect()
        try:
            for channels, data in parts:
                yield from sessions.ask_steps(channels, data, one, timeout_s)
        except BaseException:
            self._collector = None  # what was sent was given up
            raise

    def _start_valid(
        self,
        places: list[int],
        actions: OutgoingRows,
        refused: Mapping[int, InvalidAction],
        timeout_s: float | None,
    ) -> SocketFlow[None]:
        """Send the actions that can be encoded. An action that cannot is its own session's failure."""
        valid = [index for index in range(len(places)) if index not in refused]
        yield from self._start([places[index] for index in valid], actions.only(valid), timeout_s)
        collector = self._collect()
        for index, error in refused.items():
            collector.fail(places[index], error)

    def _rows(self, actions: Sequence[ActT]) -> OutgoingRows:
        together = self.sessions is not None and "together" in self.sessions.channels.supports
        return OutgoingRows(self._translation, self.format, actions, together=together)

    def _reset(
        self, given: Mapping[int, Mapping[str, Any]], timeout_s: float | None
    ) -> SocketFlow[Collector[ObsT]]:
        """Send resets; lost and closed sessions are replaced by new ones."""
        sessions = self.sessions
        assert sessions is not None
        self._over.difference_update(given)
        for place in given:
            if sessions.refusal(place) is not None:
                sessions.renew(place)
        self._is_closed = False
        yield from self._send_resets(given, timeout_s)
        return Collector(self._translation, self.format, self.count)

    def _send_resets(
        self, given: Mapping[int, Mapping[str, Any]], timeout_s: float | None
    ) -> SocketFlow[None]:
        sessions = self._opened()
        encoded: dict[int, bytes | None] = {
            place: encode_options(options, sessions.format) for place, options in given.items()
        }
        yield from sessions.ask_each("reset", encoded, timeout_s)

    def _again(self, places: Iterable[int]) -> dict[int, Mapping[str, Any]]:
        """The options that autoreset uses: those of the last reset, without its seed."""
        return {place: self._reset_options.get(place, {}) for place in places}

    # Collecting.

    def _collect(self) -> "Collector[ObsT]":
        if self._collector is None:
            self._collector = Collector(self._translation, self.format, self.count, self._hints)
        return self._collector

    def _started(self) -> "Collector[ObsT]":
        if self._collector is None:
            raise InvalidAction("nothing was sent that could be waited for")
        return self._collector

    def _collected(
        self, collector: "Collector[ObsT]", only: set[int] | None = None
    ) -> SocketFlow["Collector[ObsT]"]:
        """Wait until all that is owed has arrived, or what `only` these places owe."""
        sessions = self._opened()
        while any(map(sessions.is_owed, only)) if only is not None else sessions.owed:
            for arrived in (yield from sessions.arrivals()):
                self._sort(arrived, collector, only)
            if sessions.owed:
                collector.read_ahead()
        return collector

    def _sort(self, arrived: Arrived, collector: "Collector[ObsT]", only: set[int] | None) -> None:
        if only is None or not only.isdisjoint(arrived.channels):
            collector.take(arrived)
        elif self._collector is not None:
            self._collector.take(arrived)  # sent before, to be received later

    def _ask_each(
        self, kind: str, data: Mapping[int, bytes | None], timeout_s: float | None
    ) -> SocketFlow[dict[int, Arrived]]:
        sessions = self._opened()
        yield from sessions.ask_each(kind, data, timeout_s)
        return (yield from self._arrived_for(list(data)))

    def _arrived_for(self, places: Sequence[int]) -> SocketFlow[dict[int, Arrived]]:
        """The replies of these sessions; those of others are kept for `receive`."""
        sessions = self._opened()
        mine: dict[int, Arrived] = {}
        while len(mine) < len(places):
            if not (came := (yield from sessions.arrivals())):
                raise ClientBusy.interrupted()
            for arrived in came:
                if arrived.channels[0] in places:
                    mine[arrived.channels[0]] = arrived
                elif self._collector is not None:
                    self._collector.take(arrived)
        return mine

    def _renewed(self, result: VectorResult[ObsT]) -> SocketFlow[VectorResult[ObsT]]:
        """What autoreset makes of a result. A session that failed is neither over nor reset."""
        over = {place for place, done in enumerate(result.dones) if done} if True in result.dones else set()
        if self._autoreset != "same_step" or not over:
            self._over |= over
            return result
        final = {place: result[place] for place in over}
        collector: Collector[ObsT] = Collector(self._translation, self.format, self.count)
        yield from self._send_resets(self._again(sorted(over)), None)
        begun = (yield from self._collected(collector)).result()
        return Collector.merged(result, begun, final)


def _with_seed(options: Mapping[str, Any], seed: int | None) -> Mapping[str, Any]:
    return options if seed is None else {**options, "seed": seed}


def _seeds(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    if seed is None:
        return [None] * count
    if is_whole(seed):
        return [int(seed) + place for place in range(count)]
    if isinstance(seed, str | bytes | Mapping) or not isinstance(seed, Sized):
        raise InvalidAction(f"a seed is a whole number, not {shown(seed)}")
    if len(seed) != count:
        raise InvalidAction(f"a vector of {count} takes one seed or as many, not {len(seed)}")
    return list(seed)


def options_by_place(
    places: Mapping[int, Mapping[str, Any]],
    seed: int | Sequence[int | None] | None,
    common: Mapping[str, Any],
) -> dict[int, dict[str, Any]]:
    """The options of a reset of some sessions: their own, over the common ones."""
    if not isinstance(places, Mapping) or not all(isinstance(own, Mapping) for own in places.values()):
        raise InvalidAction(
            f"reset() takes options by session, as in {{3: {{'seed': 7}}}}, not {shown(places)}"
        )
    if seed is not None and not is_whole(seed):
        raise InvalidAction("a reset of some sessions takes one seed, or one in each session's own options")
    seeds = {} if seed is None else {place: {"seed": seed + place} for place in places}
    return {place: {**common, **seeds.get(place, {}), **own} for place, own in places.items()}
