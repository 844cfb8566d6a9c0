"""Episodes that survive their server: what was played is played again on another one, and compared.

`Replaying` is a session like the others, written as flows. It notes every call that may change the
environment, with a digest of the answer. When the session is lost it opens one on another server, makes the
same calls there, compares the answers, and only then sends the call that was under way.
"""

import logging
from collections.abc import Callable

from envtorch.client.episode_log import EpisodeLog, digest_of, with_seed
from envtorch.client.pausable import PausableFlow, Paused
from envtorch.errors import (
    CapacityReached,
    ConnectFailed,
    Draining,
    EnvTorchError,
    MessageTooLarge,
    SessionLost,
    TimedOut,
    Unsupported,
)
from envtorch.protocol.backoff import new_backoff
from envtorch.protocol.base_session import BaseSession
from envtorch.protocol.formats import Format
from envtorch.protocol.reconnect import Drop, Move, Reconnecting, Sleep, SocketFlow
from envtorch.protocol.wire import Answer, Ask
from envtorch.shown_urls import shown_url

__all__ = [
    "LOST",
    "MOST_LOSSES",
    "TRIED_AGAIN",
    "Replaying",
    "diverged",
    "require_deterministic",
    "still_recovering",
    "takes_seed",
]

logger = logging.getLogger(__name__)

PlainSession = BaseSession | Reconnecting

LOST = (SessionLost, Draining, ConnectFailed)
"""What says that the session, or its whole server, is gone."""
TRIED_AGAIN = (*LOST, CapacityReached, TimedOut)
"""What keeps a session from being recovered on one server, and not on the next."""
MOST_LOSSES = 3
"""How many sessions one call may lose: it may be the call itself that ends them."""
NOT_DETERMINISTIC = (
    "this environment says that it is not deterministic (DETERMINISTIC = False), so an episode cannot be "
    "played again: leave recover='replay' out"
)


class Replaying:
    """One session, on as many servers as it takes.

    A call that was not answered because its deadline passed or it was cancelled may have run or not: the
    session goes on, but from then on it cannot be recovered until the next reset. A deadline that passes
    during a recovery is another matter: the call has not run, and the next one goes on with the recovery.
    """

    def __init__(
        self,
        session: PlainSession,
        connect: Callable[[], SocketFlow[PlainSession]],
        log: EpisodeLog,
        *,
        recover_s: float,
        clock: Callable[[], float],
        unharmful: tuple[type[BaseException], ...] = (),
        has_elsewhere: bool = False,
    ) -> None:
        """`connect` has a socket to the address of the last `Move`, for a session that is not open yet;
        `has_elsewhere` says that it is another address than before. `unharmful` is as for `Reconnecting`.
        Raises `Unsupported` for a session whose environment says that it is not deterministic."""
        require_deterministic(session)
        self.session = session
        self.log = log
        self._connect = connect
        self._recover_s = recover_s
        self._clock = clock
        self._has_elsewhere = has_elsewhere
        self._gone: EnvTorchError | None = None
        """Why `session` is gone; it is to be recovered."""
        self._lost: EnvTorchError | None = None
        """Why it could not be recovered; only a reset goes on."""
        self._recovery = PausableFlow(self._recover, limit_s=recover_s, clock=clock, unharmful=unharmful)
        self._coming: PlainSession | None = None
        """The session that is being opened, and on which the episode is played again."""

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
            yield from self._recovered(None, None)

    def exchange(self, ask: Ask, timeout_s: float | None = None) -> SocketFlow[Answer]:
        """The reply to one request, from this server or, after a recovery, from another."""
        if self._lost is not None and ask.type != "reset":
            raise self._lost
        if ask.type == "reset" and takes_seed(self.session):
            ask = Ask("reset", with_seed(ask.data, self.format))
        deadline = None if timeout_s is None else self._clock() + timeout_s
        if self._is_to_move:
            self._gone = Draining("the server is shutting down")
            yield from self.session.close()  # a server whose sessions have all ended need not wait for more
        losses = 0
        while True:
            if self._gone is not None:
                try:
                    yield from self._recovered(ask, deadline)
                    left_s = self._left_s(deadline)
                except Paused:
                    raise still_recovering(ask, timeout_s) from None
            else:
                left_s = timeout_s
            try:
                answer = yield from self.session.exchange(ask, left_s)
                if answer.type == "error" and isinstance(error := answer.error(), LOST):
                    raise error
                self.log.note(ask, answer, self.format)
                return answer
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

    def interrupted(self) -> SocketFlow[None]:
        """A call was left anywhere on its way; a recovery begins again, with another session."""
        self._recovery.close()
        if self._gone is None:
            yield from self.session.interrupted()
        elif self._coming is not None:
            coming, self._coming = self._coming, None
            yield from coming.interrupted()
            yield from coming.close()

    def close(self) -> SocketFlow[None]:
        """End the session and its socket."""
        self._recovery.close()
        session = self.session if self._gone is None else self._coming
        if session is not None:
            yield from session.close()
        else:
            yield Drop(politely=True)

    def farewell(self) -> bytes | None:
        """A message that closes the session, whose reply nobody reads."""
        session = self.session if self._gone is None else self._coming
        return None if session is None else session.farewell()

    # Recovering.

    @property
    def _is_to_move(self) -> bool:
        """Whether to leave a server that has said it is shutting down, between two calls.

        Only where the replay is known to succeed: an episode of an environment that does not say
        `DETERMINISTIC = True` may still end here in time, and is recovered when it does not.
        """
        session = self.session
        return (
            self._has_elsewhere
            and self._gone is None
            and self.log.unknown is None
            and isinstance(session, Reconnecting)
            and session.channels.is_draining
            and session.channels.is_deterministic is True
        )

    def _recovered(self, ask: Ask | None, deadline: float | None) -> SocketFlow[None]:
        """Have a session on another server that stands where the lost one stood; for a reset, any session.
        Raises `Paused` at the caller's deadline."""
        if ask is not None and ask.type == "reset":
            self.log = EpisodeLog()
        yield from self._recovery.run(deadline)
        self._coming = None

    def _recover(self) -> SocketFlow[None]:
        cause = self._gone
        assert cause is not None
        if self.log.unknown is not None:
            told = f"and cannot be recovered: {self.log.unknown}"
            raise self._give_up(SessionLost(f"the session is lost ({cause}), {told}")) from cause
        began = self._clock()
        backoff = new_backoff()
        while True:
            yield Drop()
            try:
                address: str = yield Move(max(self._recovery.ends - self._clock(), 0.001))
            except EnvTorchError as error:
                raise self._give_up(SessionLost(f"the session is lost ({cause}): {error}")) from error
            try:
                differs = yield from self._play_again()
                break
            except TRIED_AGAIN as error:
                delay = backoff.next_s()
                if self._clock() + delay >= self._recovery.ends:
                    within = f"within {self._recover_s:g} s"
                    told = f"the session is lost ({cause}), and was not recovered {within}: {error}"
                    raise self._give_up(SessionLost(told)) from error
            yield Sleep(delay)
        if differs is not None:
            raise self._give_up(diverged(self.log.step_of(differs), cause, address)) from cause
        self._gone = self._lost = None
        took = self._clock() - began
        calls = len(self.log.plays)
        logger.info(
            "a session was recovered at %s: %d calls in %.2f s (%s)", shown_url(address), calls, took, cause
        )

    def _play_again(self) -> SocketFlow[int | None]:
        """Open a session, and make every call of the episode there. The place of the first one that was not
        answered as it was before; None when all were."""
        session = self._coming = yield from self._connect()
        try:
            if isinstance(session, Reconnecting):
                yield from session.open()
            require_deterministic(session)
            if session.format is not self.format:
                raise ConnectFailed("the server there speaks another wire")
            differs = yield from self._compared(session)
        except EnvTorchError:
            self._coming = None
            yield from session.close()
            raise
        if differs is None:
            self.session = session
        else:
            self._coming = None
            yield from session.close()
        return differs

    def _compared(self, session: PlainSession) -> SocketFlow[int | None]:
        log, place = self.log, 0
        while place < len(log.plays):
            played = log.plays[place]
            answer = yield from session.exchange(played.ask, max(self._recovery.ends - self._clock(), 0.001))
            if log is not self.log:
                return None  # a reset was called meanwhile: the episode does not matter any more
            if answer.type == "error" and isinstance(error := answer.error(), TRIED_AGAIN):
                raise error
            if digest_of(answer, session.format) != played.digest:
                return place
            place += 1
        return None

    def _left_s(self, deadline: float | None) -> float | None:
        if deadline is None:
            return None
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise Paused
        return left_s

    def _give_up(self, error: EnvTorchError) -> EnvTorchError:
        self._lost = error
        return error


def takes_seed(session: PlainSession) -> bool:
    """Whether the environment of a session says that its `reset` takes a seed."""
    return isinstance(session, Reconnecting) and "seed" in session.channels.supports


def require_deterministic(session: PlainSession) -> None:
    """Raise `Unsupported` for a session whose environment says that it is not deterministic."""
    if isinstance(session, Reconnecting) and session.channels.is_deterministic is False:
        raise Unsupported(NOT_DETERMINISTIC)


def still_recovering(ask: Ask, timeout_s: float | None) -> EnvTorchError:
    """What a call is told whose deadline passed during a recovery."""
    return TimedOut(
        f"{ask.type} was not run within {timeout_s:g} s: its server was lost, and the time went into "
        "playing the episode again on another one. The next call goes on with that",
        is_connected=False,
        is_recovering=True,
    )


def diverged(step: int, cause: EnvTorchError, address: str) -> EnvTorchError:
    """What a session is told whose episode cannot be played again: a step was answered differently."""
    what = "the reset" if step == 0 else f"step {step}"
    return SessionLost(
        f"the session is lost ({cause}), and cannot be recovered: played again at "
        f"{shown_url(address)}, {what} was answered differently. The environment is not deterministic "
        "(`envtorch check` may find where), or another one, or another version of it, is served there",
        step=step,
    )
