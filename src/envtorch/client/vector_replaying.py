"""A vector whose episodes survive their server: each is played again on another one, and compared.

All sessions of a vector are on one socket, so they move together. Their episodes are played again side by
side, a call of each at a time, and what comes of a session is its own: one that differs is lost, and the
others go on.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from envtorch.client.episode_log import EpisodeLog, Played, digest_of, with_seed
from envtorch.client.pausable import PausableFlow, Paused
from envtorch.client.replaying import (
    LOST,
    MOST_LOSSES,
    TRIED_AGAIN,
    diverged,
    require_deterministic,
    still_recovering,
    takes_seed,
)
from envtorch.client.vector_sessions import VectorSessions
from envtorch.errors import (
    CapacityReached,
    ClientBusy,
    ClientClosed,
    Draining,
    EnvTorchError,
    ProtocolError,
    SessionLost,
    TimedOut,
)
from envtorch.protocol.backoff import new_backoff
from envtorch.protocol.batch import payloads_of
from envtorch.protocol.channel import Arrived, ChannelPhase
from envtorch.protocol.formats import READ_ERRORS
from envtorch.protocol.reconnect import Late, Move, Reconnecting, Sleep, SocketFlow
from envtorch.protocol.wire import Answer, Ask
from envtorch.shown_urls import shown_url

__all__ = ["ReplayingSessions"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Asked:
    """A request that a session has not answered."""

    ask: Ask
    timeout_s: float | None
    deadline: float | None
    """When the caller stops waiting; None for the client's usual limit."""
    is_sent: bool = True
    losses: int = 0
    """How many sessions were lost while they ran it."""


class ReplayingSessions(VectorSessions):
    """Sessions on as many servers as it takes."""

    def __init__(
        self,
        connection: Reconnecting,
        *,
        recover_s: float,
        clock: Callable[[], float],
        unharmful: tuple[type[BaseException], ...] = (),
        has_elsewhere: bool = False,
    ) -> None:
        """`has_elsewhere` says that a `Move` leads to another address than before. Raises `Unsupported` for
        an environment that says it is not deterministic."""
        super().__init__(connection)
        require_deterministic(connection)
        self._recover_s, self._clock = recover_s, clock
        self._has_elsewhere = has_elsewhere
        self._logs = [EpisodeLog() for _ in range(len(connection.channels))]
        self._asked: dict[int, Asked] = {}
        self._gone: dict[int, EnvTorchError] = {}
        """The places whose sessions are to be recovered, and why."""
        self._lost: dict[int, EnvTorchError] = {}
        """The places that only a reset can use again, and why."""
        self._has_to_move = False
        self._address = "the same address"
        self._kept: list[Arrived] = []
        """What arrived during a recovery."""
        self._recovery = PausableFlow(self._recover, limit_s=recover_s, clock=clock, unharmful=unharmful)

    # What a vector sees.

    @property
    def owed(self) -> int:
        return len(self._asked)

    def is_owed(self, place: int) -> bool:
        return place in self._asked

    def refusal(self, place: int) -> EnvTorchError | None:
        if place in self._lost:
            return self._lost[place]
        refused = None if place in self._gone else self.channels.refusal(place)
        if refused is not None and not isinstance(refused, ClientClosed):
            self._gone[place] = refused  # it will be recovered
            return None
        return refused

    def renew(self, place: int) -> None:
        self._lost.pop(place, None)
        self._logs[place] = EpisodeLog()
        super().renew(place)

    def ask_steps(
        self,
        places: Sequence[int],
        actions: Mapping[str, msgspec.Raw],
        one: Callable[[int], bytes],
        timeout_s: float | None,
    ) -> SocketFlow[None]:
        data = {place: one(place) for place in places}  # now: the caller may change the actions
        self._leave_if_draining()
        if not self._gone.keys().isdisjoint(places):
            yield from self.ask_each("step", data, timeout_s)
            return
        within = self._connection.within(timeout_s)
        frame = self.channels.steps(places, actions, data.__getitem__, **within)
        self._note("step", data, timeout_s)
        yield from self._sent(frame)

    def ask_each(
        self, kind: str, data: Mapping[int, bytes | None], timeout_s: float | None
    ) -> SocketFlow[None]:
        self._leave_if_draining()
        if kind == "reset" and takes_seed(self._connection):
            data = {place: with_seed(asked, self.format) for place, asked in data.items()}
        here = {place: asked for place, asked in data.items() if place not in self._gone}
        frame = None
        if here:
            frame = self.channels.each(kind, here, **self._connection.within(timeout_s))
        self._note(kind, data, timeout_s)
        yield from self._sent(frame)

    def _leave_if_draining(self) -> None:
        """Have every session recovered elsewhere, between two calls, as a single one is: see `Replaying`."""
        channels = self.channels
        if not (channels.is_draining and channels.is_deterministic is True and self._has_elsewhere):
            return
        known = all(self._logs[place].unknown is None for place in self._live())
        if known and not (self._asked or self._gone):
            self._lose_all(Draining("the server is shutting down"))

    def _note(self, kind: str, data: Mapping[int, bytes | None], timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else self._clock() + timeout_s
        for place, asked in data.items():
            is_sent = place not in self._gone
            if not is_sent and kind == "reset":
                self._logs[place] = EpisodeLog()
            self._asked[place] = Asked(Ask(kind, asked), timeout_s, deadline, is_sent)

    def _sent(self, frame: bytes | None) -> SocketFlow[None]:
        try:
            yield from self._connection.send(frame)
        except BaseException:
            self._forget()
            raise

    def arrivals(self) -> SocketFlow[list[Arrived]]:
        """Wait until something that is owed has arrived, and recover what is lost meanwhile."""
        try:
            arrived, self._kept = self._kept, []
            while self._asked and not arrived:
                if self._gone:
                    arrived = yield from self._recovered()
                    continue
                try:
                    arrived = self._noted((yield from self._connection.arrivals()))
                except LOST as error:
                    arrived = self._lose_all(error)
            return arrived
        except BaseException:
            self._forget()
            raise

    def interrupted(self) -> SocketFlow[None]:
        self._recovery.close()
        try:
            yield from super().interrupted()  # which tells the server what is given up
        finally:
            self._forget()
        half_played = sorted(set(self.channels.alive) & self._gone.keys())
        with suppress(EnvTorchError):
            yield from self._discard(half_played)
        self.channels.closed(half_played)

    def _attached(self, places: Sequence[int], origin: int, limit_s: float) -> SocketFlow[None]:
        self._logs[len(self) - len(places) :] = [self._logs[origin].copy() for _ in places]
        try:
            yield from super()._attached(places, origin, limit_s)
        except LOST as error:
            self._lose_all(error)  # the copies will be recovered, too

    def _shorten(self, count: int) -> bytes | None:
        for gone in (self._gone, self._lost):
            for place in [place for place in gone if place >= count]:
                del gone[place]
        return super()._shorten(count)

    def say_close(self, places: Sequence[int]) -> SocketFlow[list[int]]:
        asked = yield from super().say_close(places)
        self._asked.update({place: Asked(Ask("close"), None, None) for place in asked})
        return asked

    def closed(self, places: Sequence[int]) -> None:
        super().closed(places)
        for place in places:
            self._gone.pop(place, None)
            self._lost.pop(place, None)

    def close(self) -> SocketFlow[None]:
        self._recovery.close()
        self._asked.clear()
        self._gone.clear()
        yield from super().close()

    # What arrived, and what was lost.

    def _noted(self, came: Iterable[Arrived]) -> list[Arrived]:
        """Note answers in the logs of their episodes; those that say a session is lost are left out."""
        told: list[Arrived] = []
        for arrived in came:
            error = arrived.error
            if isinstance(error, LOST) and not error.details.get("is_taken_over"):
                told += self._lose(arrived.channels[0], error)
                self._has_to_move |= isinstance(error, Draining)
                continue
            told.append(arrived)
            for place, answer in self._answers(arrived):
                asked = self._asked.get(place)
                if asked is not None:
                    self._logs[place].note(asked.ask, answer, self.format)
                    del self._asked[place]
        return told

    def _answers(self, arrived: Arrived) -> list[tuple[int, Answer]]:
        """What each session answered, as one alone would have."""
        if arrived.columns is not None:
            payloads = payloads_of(arrived.columns, self.format)
            return [
                (p, _said(data) if isinstance(data, EnvTorchError) else Answer("observation", data))
                for p, data in zip(arrived.channels, payloads, strict=True)
            ]
        place = arrived.channels[0]
        if arrived.error is not None:
            return [(place, _said(arrived.error))]
        raw = bytes(arrived.payload)
        try:
            return [(place, Answer(arrived.type, self.format.read(raw) if raw else {}))]
        except READ_ERRORS as error:
            return [(place, _said(ProtocolError(f"the reply cannot be read: {error}")))]

    def _lose(self, place: int, error: EnvTorchError) -> list[Arrived]:
        """A session is gone. It is to be recovered, unless its call has lost too many."""
        asked = self._asked.get(place)
        if asked is not None and asked.ask.type == "close":
            del self._asked[place]
            return [Arrived([place], "closed")]
        self._gone.setdefault(place, error)
        if asked is None or not asked.is_sent:
            return []
        asked.is_sent = False
        asked.losses += 1
        if asked.losses < MOST_LOSSES:
            return []
        told = f"{asked.losses} sessions in a row were lost while they ran this {asked.ask.type}: {error}"
        self._give_up(place, SessionLost(told))
        return self._failed([place])

    def _live(self) -> list[int]:
        """The places that have a session, or are to have one again without a reset."""
        mine = [p for p in range(len(self)) if self.channels.phase_of(p) is not ChannelPhase.CLOSED]
        return [place for place in mine if place not in self._lost]

    def _lose_all(self, error: EnvTorchError) -> list[Arrived]:
        """The server is gone, and every session with it."""
        mine = self._live()
        if error.details.get("is_taken_over"):
            self._lost.update(dict.fromkeys(mine, error))
            raise error
        self._has_to_move = True
        return [arrived for place in mine for arrived in self._lose(place, error)]

    def _give_up(self, place: int, error: EnvTorchError) -> None:
        self._gone.pop(place, None)
        self._lost[place] = error

    def _failed(self, places: Iterable[int]) -> list[Arrived]:
        """Those of these sessions that were asked something and are lost, with the reason."""
        lost = [place for place in places if place in self._lost and place in self._asked]
        for place in lost:
            del self._asked[place]
        return [Arrived([place], "error", error=self._lost[place]) for place in lost]

    def _forget(self) -> None:
        """Nobody waits any more for what is owed: what was sent may have run or not."""
        for place, asked in self._asked.items():
            if asked.is_sent:
                self._logs[place].lose_track(asked.ask)
        self.channels.give_up([place for place, asked in self._asked.items() if asked.is_sent])
        self._asked.clear()
        self._kept.clear()

    # Recovering.

    def _recovered(self) -> SocketFlow[list[Arrived]]:
        """Recover what is lost, and send what was asked of it. What cannot be recovered, or not in time."""
        waiting = {place: asked for place, asked in self._asked.items() if not asked.is_sent}
        deadline = min((a.deadline for a in waiting.values() if a.deadline is not None), default=None)
        try:
            yield from self._recovery.run(deadline)
        except Paused:
            return [*self._taken(), *self._late()]
        failed = [*self._taken(), *self._late(), *self._failed(list(self._asked))]
        for place, asked in self._asked.items():
            if not asked.is_sent:
                yield from self._send_again(place, asked)
        return failed

    def _taken(self) -> list[Arrived]:
        kept, self._kept = self._kept, []
        return kept

    def _late(self) -> list[Arrived]:
        """The calls that were not sent before their deadlines."""
        now = self._clock()
        late = {p: a for p, a in self._asked.items() if not a.is_sent and (a.deadline or now + 1) <= now}
        for place in late:
            del self._asked[place]
        errors = {place: still_recovering(asked.ask, asked.timeout_s) for place, asked in late.items()}
        return [Arrived([place], "error", error=error) for place, error in errors.items()]

    def _send_again(self, place: int, asked: Asked) -> SocketFlow[None]:
        left_s = None if asked.deadline is None else max(asked.deadline - self._clock(), 0.001)
        within = self._connection.within(left_s)
        asked.is_sent = True
        yield from self._connection.send(
            self.channels.each(asked.ask.type, {place: asked.ask.data}, **within)
        )

    def _recover(self) -> SocketFlow[None]:
        began, backoff = self._clock(), new_backoff()
        has_moved = False
        count, cause = len(self._gone), next(iter(self._gone.values()))
        while self._gone:
            try:
                if self._has_to_move:
                    yield from self._move()
                    has_moved = True
                self._give_up_unknown()
                if not self._gone:
                    return
                count = len(self._gone)
                yield from self._reopen()
                yield from self._play_again()
                error = next(iter(self._gone.values()), None)
                if isinstance(error, CapacityReached) and self._may_move(again=has_moved):
                    self._has_to_move = True  # the next server may have room for all
            except TimedOut as late:
                error = late  # of those that were to be recovered; the others are well
            except TRIED_AGAIN as lost:
                self._kept += self._lose_all(lost)
                error = lost
            except EnvTorchError as final:
                self._give_up_all(final)
                return
            if error is None:
                break
            delay = backoff.next_s()
            if self._clock() + delay >= self._recovery.ends:
                told = f"the session is lost, and was not recovered within {self._recover_s:g} s: {error}"
                self._give_up_all(SessionLost(told))
                return
            yield Sleep(delay)
        took = self._clock() - began
        logger.info(
            "%d sessions were recovered at %s in %.2f s (%s)", count, shown_url(self._address), took, cause
        )

    def _may_move(self, *, again: bool) -> bool:
        """Whether sessions may leave a server that has no room for all of them, without harm to those that it
        has: there are none, or those were played again here a moment ago."""
        staying = [place for place in self._live() if place not in self._gone]
        known = all(self._logs[place].unknown is None for place in staying)
        return self._has_elsewhere and (not staying or (again and known))

    def _give_up_unknown(self) -> None:
        for place, cause in list(self._gone.items()):
            unknown = self._logs[place].unknown
            if unknown is not None:
                told = f"the session is lost ({cause}), and cannot be recovered: {unknown}"
                self._give_up(place, SessionLost(told))

    def _give_up_all(self, error: EnvTorchError) -> None:
        for place in list(self._gone):
            self._give_up(place, error)

    def _move(self) -> SocketFlow[None]:
        """Leave the server for another, with every session."""
        cause = next(iter(self._gone.values()))
        self._kept += self._lose_all(cause)
        yield from self._connection.close()  # a server that drains need not wait for these sessions
        self._connection.abandon(cause)
        try:
            self._address = yield Move(max(self._recovery.ends - self._clock(), 0.001))
        except EnvTorchError as error:
            self._give_up_all(SessionLost(f"the session is lost: {error}"))
        self._has_to_move = False

    def _reopen(self) -> SocketFlow[None]:
        """Have a new session in every place that lost its own, as far as the server takes them."""
        for place in self._gone:
            self.channels.renew(place)
        try:
            yield from self._connection.get_ready(self._recovery.ends)
        except Late:
            raise TimedOut("the server did not open the sessions in time") from None
        require_deterministic(self._connection)
        for place in self._gone:
            self._gone[place] = self.channels.refusal(place) or self._gone[place]

    def _play_again(self) -> SocketFlow[None]:
        """Make the calls of every episode on its new session, and compare the answers."""
        playing = {place for place in self._gone if self.channels.phase_of(place) is ChannelPhase.HELD}
        number = 0
        while playing:
            ended = {place for place in playing if number >= len(self._logs[place].plays)}
            for place in ended:
                del self._gone[place]
            playing -= ended
            plays = {place: self._logs[place].plays[number] for place in playing}
            answers = yield from self._answered(plays)
            bad = {place for place, answer in answers.items() if not self._is_same(place, number, answer)}
            playing -= bad
            yield from self._discard(sorted(bad))
            number += 1

    def _answered(self, plays: Mapping[int, Played]) -> SocketFlow[dict[int, Answer]]:
        """What each of these sessions answers to its call."""
        within = self._connection.within(max(self._recovery.ends - self._clock(), 0.001))
        for kind in {played.ask.type for played in plays.values()}:
            data = {place: played.ask.data for place, played in plays.items() if played.ask.type == kind}
            yield from self._connection.send(self.channels.each(kind, data, **within))
        return (yield from self._answers_of(set(plays)))

    def _answers_of(self, places: set[int]) -> SocketFlow[dict[int, Answer]]:
        answers: dict[int, Answer] = {}
        while len(answers) < len(places):
            if not (came := (yield from self._connection.arrivals())):
                raise ClientBusy.interrupted()
            for arrived in came:
                if places.isdisjoint(arrived.channels):
                    self._kept += self._noted([arrived])
                else:
                    answers.update(self._answers(arrived))
        return answers

    def _is_same(self, place: int, number: int, answer: Answer) -> bool:
        """Whether a call was answered as before. If not, the session stays gone, or is given up."""
        log = self._logs[place]
        if number >= len(log.plays):
            return True  # a reset was called meanwhile: the episode does not matter any more
        if answer.type == "error" and isinstance(error := answer.error(), TRIED_AGAIN):
            self._gone[place] = error
            return False
        if digest_of(answer, self.format) == log.plays[number].digest:
            return True
        self._give_up(place, diverged(log.step_of(number), self._gone[place], self._address))
        return False

    def _discard(self, places: Sequence[int]) -> SocketFlow[None]:
        """End sessions on which an episode could not be played again."""
        if places:
            alive = set(self.channels.alive) & set(places)
            yield from self._connection.say_close(sorted(alive))
            yield from self._answers_of(alive)
            self.channels.closed(places)


def _said(error: EnvTorchError) -> Answer:
    return Answer("error", {**error.details, "code": error.code, "message": error.message})
