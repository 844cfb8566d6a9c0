"""One live session: an environment, where it runs, who holds it, and what happened in it."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from envtorch.errors import EnvironmentFailed, SessionLost
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.phases import Event, Phase, advance
from envtorch.server.runner import Runner
from envtorch.types import SessionInfo

__all__ = ["Session"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Session:
    """Everything there is to one session, in one object.

    However many doors lead to it, its environment is called by one at a time. A session without a
    socket ends when nobody called it for `lease_s` seconds; the time a call takes does not count.
    """

    def __init__(
        self,
        host: EnvironmentHost,
        runner: Runner,
        *,
        lease_s: float | None,
        on_close: Callable[["Session"], None],
    ) -> None:
        self.id = str(uuid.uuid4())
        self.host = host
        self.phase = advance(Phase.STARTING, Event.OPENED)
        self.steps = 0
        self.socket_attached = False
        self.close_when_detached = False
        self._runner = runner
        self._lease_s = lease_s
        self._on_close = on_close
        self._turn = asyncio.Lock()
        self._expiry: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._created_at = self._last_activity_at = time.time()
        self._watch_lease()

    def __repr__(self) -> str:
        return f"<Session {self.id[:8]} {self.phase.value} {self.steps} steps>"

    @property
    def info(self) -> SessionInfo:
        return SessionInfo(
            session_id=self.id,
            created_at=self._created_at,
            last_activity_at=self._last_activity_at,
            step_count=self.steps,
            environment_type=type(self.host.environment).__name__,
        )

    @property
    def is_idle(self) -> bool:
        return not self._turn.locked()

    async def run(self, flow: Generator[Any, Any, T]) -> T:
        """What a flow of the host comes to, when it is this call's turn."""
        async with self._turn:
            self._enter(Event.CALLED)
            try:
                return await self._runner.run(flow)
            except EnvironmentFailed as error:
                # Told to the client as one sentence; the traceback is for whoever runs the server.
                logger.warning("session %s: %s", self.id[:8], error, exc_info=error.__cause__ or error)
                raise
            finally:
                self._last_activity_at = time.time()
                if self.phase is not Phase.CLOSED:
                    self._enter(Event.ANSWERED)
                self._watch_lease()

    async def step(self, flow: Generator[Any, Any, T]) -> T:
        """`run`, for a flow that steps the environment."""
        result = await self.run(flow)
        self.steps += 1
        return result

    def _enter(self, event: Event) -> None:
        self.phase = advance(self.phase, event)

    # Holding on, and letting go.

    def attach(self) -> None:
        """A socket takes the session up. Raises `SessionLost` when another one has it."""
        if self.socket_attached:
            raise SessionLost(f"Session {self.id} already has an attached WebSocket")
        self.socket_attached = True
        self._watch_lease()

    async def detach(self) -> None:
        """The socket lets go; the session lives on, unless its end was already asked for."""
        self.socket_attached = False
        if self.close_when_detached:
            await self.close()
        else:
            self._watch_lease()

    def _watch_lease(self) -> None:
        """The lease runs while nothing else happens."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._lease_s is None or self.socket_attached or self.phase is not Phase.READY:
            return
        self._expiry = asyncio.get_running_loop().call_later(self._lease_s, self._expire)

    def _expire(self) -> None:
        logger.info("session %s: closed after %s s without a call", self.id[:8], self._lease_s)
        self._start_closing()

    def _start_closing(self) -> "asyncio.Task[None]":
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        return self._closing

    async def close(self) -> None:
        """End the session after the call that runs, if one does. Closing twice is closing once."""
        # The closing goes on even if whoever asked for it is gone: it is what frees the slot.
        await asyncio.shield(self._start_closing())

    async def _close(self) -> None:
        try:
            async with self._turn:
                self._enter(Event.CLOSED)
                try:
                    await self._runner.run(self.host.close())
                except EnvironmentFailed as error:
                    logger.warning("session %s: %s", self.id[:8], error, exc_info=error.__cause__)
                finally:
                    await self._runner.close()
        finally:
            self._watch_lease()
            self._on_close(self)
