"""Episodes that survive their server: what was played is played again on another one, and compared.

`Replaying` is a session like the others, written as flows. It notes every call that may change the
environment, with a digest of the answer. When the session is lost it opens one on another server, makes the
same calls there, compares the answers, and only then sends the call that was under way.
"""

import hashlib
import logging
from collections.abc import Callable
from typing import NamedTuple

from envtorch.errors import (
    Cancelled,
    CapacityReached,
    ConnectFailed,
    Draining,
    EnvTorchError,
    MessageTooLarge,
    SessionLost,
    TimedOut,
    Unsupported,
)
from envtorch.protocol.base_session import BaseSession
from envtorch.protocol.formats import Format
from envtorch.protocol.reconnect import Drop, Move, Reconnecting, Sleep, SocketFlow, new_backoff
from envtorch.protocol.wire import Answer, Ask

__all__ = ["TRIED_AGAIN", "EpisodeLog", "Replaying"]

logger = logging.getLogger(__name__)

PlainSession = BaseSession | Reconnecting

CHANGING = frozenset(("reset", "step", "mcp"))
"""The calls that may change an environment; the others are not played again."""
LOST = (SessionLost, Draining, ConnectFailed)
"""What says that the session, or its whole server, is gone."""
TRIED_AGAIN = (*LOST, CapacityReached, TimedOut)
"""What keeps a session from being recovered on one server, and not on the next."""
MOST_LOSSES = 3
"""How many sessions one call may lose: it may be the call itself that ends them."""
DIGEST_BYTES = 16

NOT_DETERMINISTIC = (
    "this environment says that it is not deterministic (DETERMINISTIC = False), so an episode cannot be "
    "played again: leave recover='replay' out"
)


class Played(NamedTuple):
    """A call, and what was answered."""

    ask: Ask
    digest: bytes


class EpisodeLog:
    """The calls of one episode, from its reset on."""

    def __init__(self) -> None:
        self.plays: list[Played] = []
        self.unknown: str | None = None
        """The call that was not answered, so that nobody knows what it has changed; then the episode cannot
        be played again."""

    def copy(self) -> "EpisodeLog":
        log = EpisodeLog()
        log.plays, log.unknown = list(self.plays), self.unknown
        return log

    def note(self, ask: Ask, answer: Answer, format: Format) -> None:
        """A call was answered."""
        if ask.type not in CHANGING:
            return
        if answer.type == "error" and isinstance(answer.error(), TimedOut | Cancelled):
            self.lose_track(ask)
            return
        if ask.type == "reset" and answer.type != "error":
            self.plays, self.unknown = [], None
        self.plays.append(Played(ask, digest_of(answer, format)))

    def lose_track(self, ask: Ask) -> None:
        """A call was not answered."""
        if ask.type in CHANGING:
            self.unknown = self.unknown or f"{ask.type} {self.step_of(len(self.plays))}"

    def step_of(self, place: int) -> int:
        """The number of the step at a place in the log: the reset is 0."""
        begins_with_reset = bool(self.plays) and self.plays[0].ask.type == "reset"
        return place if begins_with_reset or not self.plays else place + 1


def digest_of(answer: Answer, format: Format) -> bytes:
    """Two answers that a caller cannot tell apart have the same digest."""
    if answer.type == "error":
        error = answer.error()
        said = f"{error.code}: {error.message}".encode()
    else:
        said = format.write(answer.data)
    return hashlib.blake2b(said, digest_size=DIGEST_BYTES, person=answer.type.encode()[:16]).digest()


class Replaying:
    """One session, on as many servers as it takes.

    A call that was not answered because its deadline passed or it was cancelled may have run or not: the
    session goes on, but from then on it cannot be recovered until the next reset.
    """

    def __init__(
        self,
        session: PlainSession,
        reopen: Callable[[], SocketFlow[PlainSession]],
        log: EpisodeLog,
        *,
        recover_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`reopen` opens a session at the address of the last `Move`. Raises `Unsupported` for a session
        whose environment says that it is not deterministic."""
        _require_deterministic(session)
        self.session = session
        self.log = log
        self._reopen = reopen
        self._recover_s = recover_s
        self._clock = clock
        self._gone: EnvTorchError | None = None
        """Why `session` is gone; it is to be recovered."""
        self._lost: EnvTorchError | None = None
        """Why it could not be recovered; only a reset goes on."""

    @property
    def format(self) -> Format:
        return self.session.format

    def open(self) -> SocketFlow[None]:
        """Attach to a session that exists on the server; or recover it, if it does not any more."""
        assert isinstance(self.session, Reconnecting)
        try:
            yield from self.session.open()
        except LOST as error:
            self._gone = error
            yield from self._recover(None)

    def exchange(self, ask: Ask, timeout_s: float | None = None) -> SocketFlow[Answer]:
        """The reply to one request, from this server or, after a recovery, from another."""
        if self._lost is not None and ask.type != "reset":
            raise self._lost
        losses = 0
        while True:
            if self._gone is not None:
                yield from self._recover(ask)
            try:
                answer = yield from self.session.exchange(ask, timeout_s)
                if answer.type == "error" and isinstance(error := answer.error(), LOST):
                    raise error
            except LOST as error:
                self._gone = error
                losses += 1
                if error.details.get("is_taken_over"):
                    self._lost = error
                    raise
                if losses == MOST_LOSSES:
                    told = f"{losses} sessions in a row were lost while they ran this {ask.type}: {error}"
                    raise self._give_up(SessionLost(told)) from error
                continue
            except MessageTooLarge:
                raise  # it was not run
            except BaseException:
                self.log.lose_track(ask)
                raise
            self.log.note(ask, answer, self.format)
            return answer

    def close(self) -> SocketFlow[None]:
        """End the session and its socket."""
        if self._gone is None:
            yield from self.session.close()
        else:
            yield Drop(politely=True)

    def farewell(self) -> bytes | None:
        """A message that closes the session, whose reply nobody reads."""
        return self.session.farewell() if self._gone is None else None

    # Recovering.

    def _recover(self, ask: Ask | None) -> SocketFlow[None]:
        """Have a session on another server that stands where the lost one stood; for a reset, any session."""
        cause = self._gone
        assert cause is not None
        if ask is not None and ask.type == "reset":
            self.log = EpisodeLog()
        if self.log.unknown is not None:
            told = f"and cannot be recovered: {self.log.unknown} was not answered"
            raise self._give_up(SessionLost(f"the session is lost ({cause}), {told}")) from cause
        began = self._clock()
        backoff = new_backoff()
        while True:
            yield Drop()
            left_s = began + self._recover_s - self._clock()
            try:
                address: str = yield Move(max(left_s, 0.001))
            except EnvTorchError as error:
                raise self._give_up(SessionLost(f"the session is lost ({cause}): {error}")) from error
            try:
                differs = yield from self._play_again()
                break
            except TRIED_AGAIN as error:
                delay = backoff.next_s()
                if self._clock() + delay >= began + self._recover_s:
                    within = f"within {self._recover_s:g} s"
                    told = f"the session is lost ({cause}), and was not recovered {within}: {error}"
                    raise self._give_up(SessionLost(told)) from error
            yield Sleep(delay)
        if differs is not None:
            raise self._give_up(self._diverged(differs)) from cause
        self._gone = self._lost = None
        took = self._clock() - began
        calls = len(self.log.plays)
        logger.info("a session was recovered at %s: %d calls in %.2f s (%s)", address, calls, took, cause)

    def _play_again(self) -> SocketFlow[int | None]:
        """Open a session, and make every call of the episode there. The place of the first one that was not
        answered as it was before; None when all were."""
        session = yield from self._reopen()
        try:
            _require_deterministic(session)
            if session.format is not self.format:
                raise ConnectFailed("the server there speaks another wire")
            for place, played in enumerate(self.log.plays):
                answer = yield from session.exchange(played.ask)
                if answer.type == "error" and isinstance(error := answer.error(), TRIED_AGAIN):
                    raise error
                if digest_of(answer, session.format) != played.digest:
                    yield from session.close()
                    return place
        except EnvTorchError:
            yield from session.close()
            raise
        self.session = session
        return None

    def _diverged(self, place: int) -> EnvTorchError:
        step = self.log.step_of(place)
        what = "the reset" if step == 0 else f"step {step}"
        return SessionLost(
            f"the session is lost ({self._gone}), and cannot be recovered: played again, {what} was answered "
            "differently. The environment is not deterministic: `envtorch check` finds where",
            step=step,
        )

    def _give_up(self, error: EnvTorchError) -> EnvTorchError:
        self._lost = error
        return error


def _require_deterministic(session: PlainSession) -> None:
    if isinstance(session, Reconnecting) and session.channels.is_deterministic is False:
        raise Unsupported(NOT_DETERMINISTIC)
