"""`steps`: the steps of many sessions, taken together where their environments never wait."""

import asyncio
from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import Any

from envtorch.errors import EnvTorchError
from envtorch.protocol.batch import pick, write_columns
from envtorch.protocol.formats import Format
from envtorch.protocol.host import blamed
from envtorch.protocol.wire import Reply
from envtorch.server.session import Session

__all__ = ["Batch", "KeptStep"]

Bare = Callable[[Any], Any]


class KeptStep:
    """One session's share of a batch, kept for a caller who may have to ask again."""

    __slots__ = ("_columns", "_format", "_index")

    def __init__(self, columns: bytes, index: int, format: Format) -> None:
        self._columns, self._index, self._format = columns, index, format

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def result(self) -> Reply:
        return pick(self._columns, self._index, self._format)


class Batch:
    """Steps that are taken one after the other, in one go."""

    def __init__(
        self, members: Sequence[tuple[Session, Bare]], channels: list[int], id: int, format: Format
    ) -> None:
        """`members` are sessions, and the bare steps of their environments."""
        self._members, self._channels, self._id, self._format = members, channels, id, format
        self.apart: list[int] = []
        """The channels that are answered each by itself: their outcomes are in their ledgers."""
        self.postponed: list[int] = []
        """The places, in the batch, of sessions whose environments want to be awaited after all."""

    def run(self, actions: list[Any], acknowledged: int | None) -> bytes | None:
        """The data of the reply, for all that could be stepped; None when nobody could."""
        meter = self._members[0][0].meter
        began = meter.clock()
        observations, sessions, channels = [], [], []
        for place, (session, step) in enumerate(self._members):
            try:
                observation = step(actions[place])
            except (Exception, SystemExit) as error:
                self._fail(session, self._channels[place], blamed("step", error))
                continue
            if type(observation) is CoroutineType:
                observation.close()
                session.wants_awaiting()
                self.postponed.append(place)
                continue
            session.steps += 1
            observations.append(observation)
            sessions.append(session)
            channels.append(self._channels[place])
        meter.stepped_together(began, len(sessions))
        return self._keep(observations, sessions, channels, acknowledged) if sessions else None

    def _keep(
        self, observations: list[Any], sessions: list[Session], channels: list[int], acknowledged: int | None
    ) -> bytes | None:
        try:
            columns = write_columns(observations, channels, self._format)
        except EnvTorchError:
            self._one_by_one(observations, sessions, channels)
            return None
        for index, session in enumerate(sessions):
            session.ledger.renew(self._id, KeptStep(columns, index, self._format), acknowledged)
        return columns

    def _one_by_one(self, observations: list[Any], sessions: list[Session], channels: list[int]) -> None:
        """One of the observations cannot be encoded: find out which, and let the others be answered."""
        for observation, session, channel in zip(observations, sessions, channels, strict=True):
            try:
                columns = write_columns([observation], [channel], self._format)
            except EnvTorchError as error:
                self._fail(session, channel, error)
            else:
                session.ledger.take(self._id, KeptStep(columns, 0, self._format))
                self.apart.append(channel)

    def _fail(self, session: Session, channel: int, error: EnvTorchError) -> None:
        outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        outcome.set_exception(error)
        outcome.exception()
        session.failed(error)
        session.ledger.take(self._id, outcome)
        self.apart.append(channel)
