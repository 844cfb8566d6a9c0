"""Questions about the environment that are no part of an episode: its metadata, its tools, its tasks."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from envtorch.errors import SessionLost
from envtorch.protocol.calls import Call
from envtorch.protocol.ledger import CallOutcome
from envtorch.server.runners.runner import Runner
from envtorch.server.sessions.awaited_outcome import outcome_of
from envtorch.server.sessions.session import Session
from envtorch.server.sessions.timed_builds import close_unused, unless_ended

__all__ = ["Questions"]


class Questions:
    """Has questions answered by the environment of a session, else by one that is kept for the next session.

    That one, the spare, makes one call at a time as every environment does: questions to it wait for each
    other. A session that opens meanwhile gets an environment of its own, as a question may take long.
    """

    def __init__(
        self,
        live: Mapping[str, Session],
        build: Callable[[], Awaitable[Runner]],
        has_room: Callable[[], bool],
    ) -> None:
        self.spare: Runner | None = None
        self._live = live
        self._build = build
        self._has_room = has_room
        self._turn = asyncio.Lock()
        """Held while the spare is built, asked, given away or closed."""
        self._is_asked = False
        """Whether the spare has a question to answer."""

    async def runner(self) -> Runner:
        """A live environment whose name and tools may be looked at; it may be in a call. Raises
        `FactoryFailed`."""
        if self.spare is not None and self.spare.ended is None:
            return self.spare
        async with self._turn:
            spare = self.spare = await unless_ended(self.spare)
            if spare is None:
                if self._live:
                    return next(iter(self._live.values())).runner
                spare = self.spare = await self._build()
            return spare

    async def ask(self, call: Call) -> Any:
        """What an environment answers. Raises its error, `FactoryFailed`, and `SessionLost` when every
        session is closing and there is no room for another environment."""
        await self._turn.acquire()
        try:
            self.spare = await unless_ended(self.spare)
            session = None if self.spare is not None else self._session()
            if session is None:
                spare = self.spare = self.spare or await self._build()
        except BaseException:
            self._turn.release()
            raise
        if session is not None:
            self._turn.release()
            return await outcome_of(session.submit(call, is_question=True))
        outcome, self._is_asked = CallOutcome(call), True
        outcome.then(self._answered)  # also when nobody waits for the answer any more
        spare.start(call, outcome.settle)
        return await outcome_of(outcome)

    def _answered(self, outcome: CallOutcome) -> None:
        self._is_asked = False
        self._turn.release()

    def _session(self) -> Session | None:
        """A session that takes calls, if possible one that answers at once; None when there is none."""
        usable = [session for session in self._live.values() if session.is_usable]
        if usable:
            return next((session for session in usable if session.is_free), usable[0])
        if self._live and not self._has_room():
            raise SessionLost(
                "every session of this server is closing or stuck; ask again when one has closed"
            )
        return None

    async def take_spare(self, *, waits: bool = True) -> Runner | None:
        """The spare, if there is one, for a session that opens. While it has a question to answer it is
        waited for, or left out."""
        if self._is_asked and not waits:
            return None
        async with self._turn:
            spare, self.spare = await unless_ended(self.spare), None
            return spare

    async def close(self) -> None:
        """Close the spare, if there is one."""
        spare = await self.take_spare()
        if spare is not None:
            await close_unused(spare)
