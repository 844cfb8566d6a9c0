"""One session on OpenEnv's wire, as its client sees it: it lives and dies with its socket."""

from collections.abc import Callable
from contextlib import suppress

from envtorch.errors import ConnectFailed, EnvTorchError, SessionLost, TimedOut
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.reconnect import Cut, Drop, Late, Receive, Send, SocketFlow, Timings, connected
from envtorch.protocol.requests import CLOSE, Pairing
from envtorch.protocol.wire import Answer, Ask

__all__ = ["BaseSession"]


class BaseSession:
    """Requests and replies in order, without ids. When the socket goes, the session is lost."""

    format: Format = JSON

    def __init__(self, timings: Timings, clock: Callable[[], float]) -> None:
        self._timings = timings
        self._clock = clock
        self._pairing = Pairing()
        self._lost: EnvTorchError | None = None

    def exchange(self, ask: Ask, timeout_s: float | None = None) -> SocketFlow[Answer]:
        """The reply to one request. A reset of a lost session opens another."""
        if self._lost is not None:
            yield from self._reopen(ask)
        limit_s = self._timings.message_timeout_s if timeout_s is None else timeout_s
        deadline = self._clock() + limit_s
        try:
            self._pairing.asked()
            yield Send(ask.frame(), deadline)
            while True:
                frame = yield Receive(deadline)
                if self._pairing.answers_the_last():
                    return Answer.read(frame)
        except Late:
            raise TimedOut(f"{ask.type} was not answered within {limit_s:g} s") from None
        except Cut as cut:
            self._lost = SessionLost(f"the connection to the server is gone: {cut}")
            yield Drop()
            raise self._lost from cut

    def _reopen(self, ask: Ask) -> SocketFlow[None]:
        assert self._lost is not None
        if ask.type != "reset":
            raise self._lost
        if (yield from connected(self._timings, self._clock)) is not None:
            raise ConnectFailed("the server there speaks another wire now")
        self._lost, self._pairing = None, Pairing()

    def interrupted(self) -> SocketFlow[None]:
        """A call was left anywhere on its way. Nobody knows whose reply comes next: the session is lost."""
        if self._lost is None:
            self._lost = SessionLost("a call was interrupted, and OpenEnv's wire cannot tell its reply apart")
        yield Drop()

    def close(self) -> SocketFlow[None]:
        """End the session and its socket."""
        if self._lost is None:
            with suppress(Cut, Late):  # there may be nobody left to tell
                yield Send(CLOSE.frame(), self._clock() + 1.0)
        yield Drop(politely=True)

    def farewell(self) -> bytes | None:
        """A message that closes the session, whose reply nobody reads."""
        return CLOSE.frame() if self._lost is None else None
