"""Waiting until a server is healthy: one loop, one deadline, for every provider."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from envtorch.errors import NotReady, ServerExited
from envtorch.shown_urls import shown_url

if TYPE_CHECKING:
    from envtorch.providers.provider_base import Status

__all__ = ["NO_ANSWER", "Ask", "Watched", "is_shutting_down", "live_sessions", "probe", "wait_until_healthy"]

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.25
LOG_LINES = 20
"""How much of its log a failure carries."""

NOT_ASKED = "it was not asked yet"
NO_ANSWER = "it did not answer in time"


Ask = Callable[[str, float], str | None]
"""Asks a server for its health, within so many seconds: None when it is healthy, else why not."""


class Watched(Protocol):
    """Something that can tell whether the server still lives, and what it wrote."""

    def status(self) -> "Status": ...

    def logs(self, tail: int, /) -> str: ...


def wait_until_healthy(
    base_url: str,
    *,
    timeout_s: float,
    watched: Watched,
    ask: Ask | None = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return when `GET base_url/health` answers 200.

    Raises `ServerExited` as soon as the server is gone and `NotReady` at the deadline.
    """
    ask = ask or probe
    deadline = clock() + timeout_s
    wait = FIRST_PAUSE_S
    reason = NOT_ASKED
    while True:
        status = watched.status()
        if not status.is_alive:
            raise exited(status, watched)
        left = deadline - clock()
        if left <= 0:
            logs = watched.logs(LOG_LINES)
            why = f"{status.detail}; {reason}" if status.detail else reason
            raise NotReady(
                f"the server at {shown_url(base_url)} was not healthy within {timeout_s:g} s: {why}",
                logs=logs,
            )
        answer = ask(base_url, left)
        if answer is None:
            return
        if answer != NO_ANSWER or clock() < deadline or reason == NOT_ASKED:
            reason = answer  # an attempt that our own deadline cut short says less than the one before
        pause(min(wait, max(deadline - clock(), 0.0)))
        wait = min(wait * 1.5, LONGEST_PAUSE_S)


def exited(status: "Status", watched: Watched) -> ServerExited:
    """The error for a server that is gone."""
    how = f" with code {status.exit_code}" if status.exit_code is not None else ""
    why = f" ({status.detail})" if status.detail else ""
    logs = watched.logs(LOG_LINES)
    return ServerExited(
        f"the server ended{how} before it was healthy{why}", logs=logs, exit_code=status.exit_code
    )


def probe(base_url: str, timeout_s: float = 5.0, *, through_proxy: bool = False) -> str | None:
    """Why the server at `base_url` is not healthy; None when it is.

    A server on this machine or in this cluster is never behind the user's proxy; one far away may be.
    """
    try:
        response = httpx.get(f"{base_url}/health", timeout=min(timeout_s, 5.0), trust_env=through_proxy)
    except httpx.TimeoutException:
        return NO_ANSWER
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    if response.is_success:
        return None
    return f"/health answered {response.status_code}: {response.text[:200]}"


def is_shutting_down(base_url: str) -> bool:
    """Whether the server at `base_url` says that it opens no session any more."""
    return _told(base_url, "/ready").get("detail") == "draining"


def live_sessions(base_url: str) -> int:
    """How many sessions the server at `base_url` says it has; 0 for one that does not say."""
    told = _told(base_url, "/live").get("sessions")
    return told if isinstance(told, int) else 0


def _told(base_url: str, path: str) -> dict[str, Any]:
    """The fields that a server answers with; none where it does not, or not in that way."""
    try:
        answer = httpx.get(f"{base_url}{path}", timeout=5.0, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}
