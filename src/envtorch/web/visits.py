"""Visitors of the page and their sessions: each has their own, and may fork it into branches."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from envtorch.errors import EnvTorchError, InvalidAction, NotAllowed, SessionLost
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import Encoded, encode_value
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from envtorch.settings import ServerMode
from envtorch.web.episodes import EpisodeEntry, Track
from envtorch.web.schema import masked

__all__ = ["Branch", "Visit", "Visits"]

logger = logging.getLogger(__name__)


class Branch:
    """One live session of a visitor, and what they saw in it."""

    def __init__(self, name: str, session: Session, entries: list[EpisodeEntry] | None = None) -> None:
        self.name = name
        self.session = session
        self.entries: list[EpisodeEntry] = entries or []
        self.state: dict[str, Any] = {}

    @property
    def track(self) -> Track:
        return Track(self.name, tuple(self.entries))

    async def reset(self, options: Mapping[str, Any], *, strict: bool = True) -> EpisodeEntry:
        """Begin an episode."""
        began = time.perf_counter()
        encoded = await self.session.call(Call.reset(options, strict=strict))
        entry = _entry("reset", options, encoded, began)
        self.entries = [entry]
        await self._look_at_state()
        return entry

    async def step(self, action: Mapping[str, Any]) -> EpisodeEntry:
        """Take one action. What the environment failed to do is kept in the history, and raised."""
        began = time.perf_counter()
        try:
            encoded = await self.session.call(Call.step(encode_value(action, blame=InvalidAction)))
        except InvalidAction:
            raise  # it was never taken
        except EnvTorchError as error:
            before = self.entries[-1].observation if self.entries else {}
            seconds = time.perf_counter() - began
            sent = masked(action)
            self.entries.append(EpisodeEntry("step", sent, before, seconds=seconds, error=str(error)))
            raise
        entry = _entry("step", action, encoded, began)
        self.entries.append(entry)
        await self._look_at_state()
        return entry

    async def _look_at_state(self) -> None:
        with suppress(EnvTorchError):  # an environment may have no state to tell
            self.state = json.loads(await self.session.call(Call("state")))

    async def ask(self, method: str, *args: Any) -> Any:
        """What one of the environment's methods for the page answers; None where it has no such method."""
        try:
            return json.loads(await self.session.call(Call.with_arguments("tasks", method, *args)))
        except EnvTorchError as error:
            logger.debug("%s gave nothing: %s", method, error)
        except Exception:  # the author's code: the page goes on without its drawing
            logger.warning("%s failed", method, exc_info=True)
        return None


def _entry(call: Any, sent: Mapping[str, Any], encoded: Encoded, began: float) -> EpisodeEntry:
    payload = json.loads(encoded.http_body())
    return EpisodeEntry(
        call=call,
        sent=masked(dict(sent)),
        observation=payload["observation"],
        reward=payload["reward"],
        done=payload["done"],
        seconds=time.perf_counter() - began,
    )


class Visit:
    """One visitor: the branches they play on, and which of them is before their eyes."""

    def __init__(self, sessions: Sessions, mode: ServerMode) -> None:
        self._sessions = sessions
        self._mode = mode
        self.branches: dict[str, Branch] = {}
        self.current = "main"
        self.turn = asyncio.Lock()

    @property
    def branch(self) -> Branch | None:
        return self.branches.get(self.current)

    @property
    def entries(self) -> list[EpisodeEntry]:
        return self.branch.entries if self.branch else []

    async def reset(self, options: Mapping[str, Any], *, strict: bool = True) -> EpisodeEntry:
        """Begin an episode on the current branch, opening its session if there is none."""
        self.require_simulation()
        async with self.turn:
            return await (await self.ready()).reset(options, strict=strict)

    async def step(self, action: Mapping[str, Any]) -> EpisodeEntry:
        """Take one action on the current branch; the first one begins an episode."""
        self.require_simulation()
        async with self.turn:
            branch = await self.ready()
            if not branch.entries:
                await branch.reset({})
            return await branch.step(action)

    async def fork(self) -> Branch:
        """Copy the current branch as it is now, and look at the copy."""
        self.require_simulation()
        async with self.turn:
            origin = self.branch
            if origin is None or not origin.entries:
                raise SessionLost("there is no episode to fork yet: reset first")
            (session,) = await self._sessions.fork(origin.session, 1)
            name = f"fork {len(self.branches)} of {origin.name.partition(' of ')[0]}"
            copy = Branch(name, session, list(origin.entries))
            copy.state = dict(origin.state)
            self.branches[name] = copy
            self.current = name
            return copy

    async def ready(self) -> Branch:
        """The current branch, with a session that takes calls. A session that is gone is told of once."""
        branch = self.branch
        if branch is not None and not branch.session.is_usable:
            del self.branches[branch.name]
            self.current = next(iter(self.branches), "main")
            raise SessionLost("this session has ended, and its episode with it; reset begins another")
        if branch is None:
            branch = Branch(self.current, await self._sessions.open(held=False))
            self.branches[branch.name] = branch
        return branch

    def require_simulation(self) -> None:
        """Raise `NotAllowed` where nobody runs episodes."""
        if self._mode is ServerMode.PRODUCTION:
            raise NotAllowed("this server is in production mode: episodes are not run from here")

    async def close(self) -> None:
        """End every session of the visitor."""
        branches, self.branches = list(self.branches.values()), {}
        for branch in branches:
            await self._sessions.release(branch.session, "its visitor left the page")


class Visits:
    """All visitors, by the id that their browser tab has."""

    def __init__(self, sessions: Sessions, mode: ServerMode) -> None:
        self.sessions = sessions
        self.mode = mode
        self._by_tab: dict[str, Visit] = {}

    def of(self, tab: str | None) -> Visit:
        """The visit of a tab; without one, the visit that all callers without a tab share."""
        return self._by_tab.setdefault(tab or "", Visit(self.sessions, self.mode))

    async def leave(self, tab: str | None) -> None:
        """The tab is closed: so are its sessions."""
        visit = self._by_tab.pop(tab or "", None)
        if visit is not None:
            await visit.close()
