"""What a client asks of a server, and in what order the replies come.

A request is a flow that yields an `Ask` and is sent its `Answer`.
"""

from collections.abc import Generator
from typing import Any, TypeVar

from envtorch.errors import InvalidAction
from envtorch.protocol.arguments import is_whole, shown
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.wire import Answer, Ask

__all__ = [
    "CLOSE",
    "Asking",
    "Pairing",
    "ask_fork",
    "copies_of",
    "websocket_url",
]

T = TypeVar("T")
Asking = Generator[Ask, Answer, T]

CLOSE = Ask("close")
"""Ends a session on OpenEnv's wire; there is no reply to it."""


def copies_of(count: Any) -> int:
    """How many copies to make. Raises `InvalidAction` for fewer than one, and for what is no number."""
    if not is_whole(count) or count < 1:
        raise InvalidAction(f"a session is forked into one copy or more, not {shown(count)}")
    return int(count)


def ask_fork(count: int, format: Format = JSON) -> Asking[list[str]]:
    """Have the session copied; the tokens of the copies."""
    answer = yield Ask("fork", format.write({"n": count}))
    return [str(session["token"]) for session in answer.expect("forked")["sessions"]]


class Pairing:
    """Which reply belongs to the call that waits, on a wire whose replies carry no id.

    Replies come in order, one per request. A call that gave up still has its reply coming; it is
    counted, and skipped when it arrives, so that it is never taken for the next one's.
    """

    def __init__(self) -> None:
        self._owed = 0

    def asked(self) -> None:
        self._owed += 1

    def answers_the_last(self) -> bool:
        """Note that a reply came; say whether it answers the newest request."""
        self._owed -= 1
        return self._owed == 0


def websocket_url(base_url: str, path: str = "/ws") -> str:
    """Where the socket of a server is: `http://host:8000/` gives `ws://host:8000/ws`."""
    base = base_url.strip().rstrip("/")
    scheme, separator, rest = base.partition("://")
    if not separator:
        scheme, rest = "ws", base
    scheme = {"http": "ws", "https": "wss"}.get(scheme, scheme)
    return f"{scheme}://{rest}{path}"
