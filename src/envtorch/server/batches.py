"""`steps`: the steps of many sessions, taken together where their environments never wait."""

import asyncio
from collections.abc import Iterable, Sequence
from types import CoroutineType
from typing import Any

import msgspec

from envtorch.errors import EnvTorchError
from envtorch.protocol.batch import pick, write_columns
from envtorch.protocol.formats import Format
from envtorch.protocol.host import EnvironmentHost, blamed
from envtorch.protocol.wire import Reply
from envtorch.server.session import Session

__all__ = ["Batch", "KeptStep", "joining"]


class KeptStep(msgspec.Struct, frozen=True, gc=False):
    """One session's share of a batch, kept for a caller who may have to ask again."""

    columns: bytes
    index: int
    format: Format

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def result(self) -> Reply:
        return pick(self.columns, self.index, self.format)


def joining(sessions: Iterable[Session | None], id: int) -> list[EnvironmentHost] | None:
    """The hosts of sessions that can all take step `id` at once; None when one of them cannot."""
    hosts = []
    for session in sessions:
        host = session.may_join(id) if session is not None else None
        if host is None:
            return None
        hosts.append(host)
    return hosts


class Batch:
    """Steps that are taken one after the other, in one go.

    What one step costs here is paid by all of them, so the loops hold only what a session needs for itself;
    the clock is read once, and one serialisation writes all observations.
    """

    def __init__(
        self,
        sessions: list[Session],
        channels: list[int],
        id: int,
        format: Format,
        acknowledged: int | None,
    ) -> None:
        self._sessions, self._channels, self._id, self._format = sessions, channels, id, format
        self._acknowledged = acknowledged
        self._meter = sessions[0].meter
        self._began = self._meter.clock()
        self.apart: list[int] = []
        """The channels that are answered each by itself: their outcomes are in their ledgers."""
        self.postponed: list[int] = []
        """The channels of sessions whose environments want to be awaited after all."""

    def run(self, hosts: Sequence[EnvironmentHost], actions: list[Any]) -> bytes | None:
        """The data of the reply, for all that could be stepped; None when nobody could."""
        observations: list[Any] = []
        left_out: list[int] = []
        take = observations.append
        for host, action in zip(hosts, actions, strict=True):
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

    def _leave_out(self, places: Iterable[int]) -> None:
        """Go on without the sessions at these places."""
        out = set(places)
        self._sessions = [one for place, one in enumerate(self._sessions) if place not in out]
        self._channels = [one for place, one in enumerate(self._channels) if place not in out]

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
        self._meter.stepped_together(self._began, len(observations))
        id, format, acknowledged, began = self._id, self._format, self._acknowledged, self._began
        for index, session in enumerate(self._sessions):
            session.joined(id, KeptStep(columns, index, format), acknowledged, began)
        return columns

    def _one_by_one(self, observations: list[Any]) -> None:
        """One of the observations cannot be encoded: find out which, and let the others be answered."""
        encoded = 0
        for observation, session, channel in zip(observations, self._sessions, self._channels, strict=True):
            try:
                columns = write_columns([observation], [channel], self._format)
            except EnvTorchError as error:
                self._fail(session, channel, error)
            else:
                kept = KeptStep(columns, 0, self._format)
                session.joined(self._id, kept, self._acknowledged, self._began)
                self.apart.append(channel)
                encoded += 1
        self._meter.stepped_together(self._began, encoded)

    def _fail(self, session: Session, channel: int, error: EnvTorchError) -> None:
        outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        outcome.set_exception(error)
        outcome.exception()
        session.failed(error)
        session.ledger.take(self._id, outcome)
        self.apart.append(channel)
