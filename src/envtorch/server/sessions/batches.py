"""`steps`: the steps of many sessions, taken together where their environments never wait."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CoroutineType
from typing import Any

from envtorch.errors import EnvironmentFailed, EnvTorchError
from envtorch.protocol.batch import Steps, pick, write_columns, write_together
from envtorch.protocol.formats import Format
from envtorch.protocol.host import EnvironmentHost, blamed
from envtorch.protocol.wire import Reply
from envtorch.server.sessions.lineups import Lineup
from envtorch.server.sessions.outcomes import Settled, SharedOutcome
from envtorch.server.sessions.session import Session
from envtorch.together import Actions

__all__ = ["Batch", "KeptSteps"]


class KeptSteps(SharedOutcome):
    """What a batch was answered, kept for callers who may have to ask again."""

    __slots__ = ("_columns", "_format", "_session_ids")

    def __init__(self, columns: bytes, session_ids: Sequence[str], format: Format) -> None:
        self._columns, self._session_ids, self._format = columns, session_ids, format

    def share_of(self, session_id: str) -> Reply:
        return pick(self._columns, self._session_ids.index(session_id), self._format)


class Batch:
    """Steps that are taken in one go: together by the environments' `step_many`, or one after the other.

    What one step costs here is paid by all of them, so the loops hold only what a session needs for itself;
    the clock is read once, and one serialisation writes all observations.
    """

    def __init__(
        self, lineup: Lineup, actions: Actions[Any], id: int, format: Format, acknowledged: int | None
    ) -> None:
        self._lineup, self._actions = lineup, actions
        self._sessions, self._session_ids = lineup.sessions, lineup.session_ids
        self._channels = lineup.channels
        self._id, self._format, self._acknowledged = id, format, acknowledged
        self._meter = self._sessions[0].meter
        self._began = self._meter.clock()
        self.apart: list[int] = []
        """The channels that are answered each by itself: their outcomes are in their ledgers."""
        self.postponed: list[int] = []
        """The channels of sessions whose environments want to be awaited after all."""

    @classmethod
    def of(
        cls, asked: Steps, lineup: Lineup, *, id: int, format: Format, acknowledged: int | None
    ) -> "Batch | None":
        """The steps that were asked for; None when one of them has to wait, and nothing was done."""
        if not Session.may_join(lineup.sessions, id):
            return None
        actions = _actions(asked, lineup.hosts[0], format)
        if actions is None or len(actions) != len(lineup.hosts):
            return None
        return cls(lineup, actions, id, format, acknowledged)

    def run(self) -> bytes | None:
        """The data of the reply, for all that could be stepped; None when nobody could."""
        step_many = self._lineup.step_many
        return self._run_in_turn() if step_many is None else self._run_together(step_many)

    def _run_in_turn(self) -> bytes | None:
        observations: list[Any] = []
        left_out: list[int] = []
        take = observations.append
        for host, action in zip(self._lineup.hosts, self._actions, strict=True):
            try:
                take(host.bare_step(action))
            except (Exception, SystemExit) as error:
                place = len(observations) + len(left_out)
                left_out.append(place)
                self._fail(self._sessions[place], self._channels[place], blamed("step", error))
        if left_out:
            self._leave_out(left_out)
        if CoroutineType in set(map(type, observations)):
            observations = self._postpone(observations)
        return self._keep(observations) if observations else None

    def _run_together(self, step_many: Callable[[Sequence[Any], Actions[Any]], Any]) -> bytes | None:
        try:
            given = step_many(self._lineup.environments, self._actions)
        except (Exception, SystemExit) as error:
            self._fail_all(blamed("step_many", error), error)
            return None
        try:
            if isinstance(given, Mapping):
                kind = self._lineup.hosts[0].observation_class
                return self._kept(write_together(kind, given, self._channels, self._format))
            return self._keep(_observations(given, len(self._channels)))
        except EnvTorchError as error:
            self._fail_all(error)
            return None

    def _leave_out(self, places: Iterable[int]) -> None:
        """Go on without the sessions at these places."""
        out = set(places)
        self._sessions = [one for place, one in enumerate(self._sessions) if place not in out]
        self._channels = [one for place, one in enumerate(self._channels) if place not in out]
        self._session_ids = [session.id for session in self._sessions]

    def _postpone(self, observations: list[Any]) -> list[Any]:
        """Set those aside that turned out to be coroutines: none of them has begun."""
        waiting = [place for place, one in enumerate(observations) if type(one) is CoroutineType]
        for place in waiting:
            observations[place].close()
            self._sessions[place].wants_awaiting()
        self.postponed += [self._channels[place] for place in waiting]
        self._leave_out(waiting)
        return [one for one in observations if type(one) is not CoroutineType]

    def _keep(self, observations: list[Any]) -> bytes | None:
        try:
            columns = write_columns(observations, self._channels, self._format)
        except EnvTorchError:
            self._one_by_one(observations)
            return None
        return self._kept(columns)

    def _kept(self, columns: bytes) -> bytes:
        """The steps were taken, and this is the answer to all of them."""
        self._meter.stepped_together(self._began, len(self._sessions))
        self._note_kept(columns, self._sessions, self._session_ids)
        return columns

    def _note_kept(self, columns: bytes, sessions: Sequence[Session], session_ids: Sequence[str]) -> None:
        kept = KeptSteps(columns, session_ids, self._format)
        Session.joined(sessions, self._id, kept, self._acknowledged, self._began)

    def _one_by_one(self, observations: list[Any]) -> None:
        """One of the observations cannot be encoded: find out which, and let the others be answered."""
        encoded = 0
        for observation, session, channel in zip(observations, self._sessions, self._channels, strict=True):
            try:
                columns = write_columns([observation], [channel], self._format)
            except EnvTorchError as error:
                self._fail(session, channel, error)
            else:
                self._note_kept(columns, [session], [session.id])
                self.apart.append(channel)
                encoded += 1
        self._meter.stepped_together(self._began, encoded)

    def _fail(self, session: Session, channel: int, error: EnvTorchError) -> None:
        session.failed(error)
        self._note(session, channel, error)

    def _fail_all(self, error: EnvTorchError, cause: BaseException | None = None) -> None:
        """What they did together went wrong: that is one failure, in one line of the log, and all have it."""
        error.__cause__ = cause if cause is not error else error.__cause__
        self._sessions[0].failed(error)
        for session, channel in zip(self._sessions, self._channels, strict=True):
            if session is not self._sessions[0]:
                self._meter.answered("step", self._began, error)
            self._note(session, channel, error)

    def _note(self, session: Session, channel: int, error: EnvTorchError) -> None:
        session.ledger.take(self._id, Settled(None, error))
        self.apart.append(channel)


def _actions(asked: Steps, host: EnvironmentHost, format: Format) -> Actions[Any] | None:
    """The actions, read at once; None when they have to be read one by one."""
    rows: Sequence[Any] | None
    if bytes(asked.columns):
        actions = host.read_columns(bytes(asked.columns), len(asked.ch), format)
        if actions is None or host.step_many is not None:
            return actions
        rows = actions.values()
    else:
        rows = host.read_actions(bytes(asked.actions), format)
    return None if rows is None else Actions.of(rows)


def _observations(given: Any, count: int) -> list[Any]:
    """What `step_many` gave, if it is as many observations as there were environments."""
    if isinstance(given, CoroutineType):
        given.close()
        raise EnvironmentFailed("step_many has to be a plain classmethod: nobody awaits it")
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise EnvironmentFailed(
            f"step_many gave {type(given).__name__}; it has to give a list of observations, or their columns"
        )
    if len(given) != count:
        raise EnvironmentFailed(f"step_many gave {len(given)} observations for {count} environments")
    return list(given)
