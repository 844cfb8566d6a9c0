"""One live session: an environment, where it runs, who holds it, and what was answered in it."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, TypeVar

from envtorch.errors import (
    Cancelled,
    Draining,
    EnvironmentFailed,
    EnvTorchError,
    SessionLost,
    TimedOut,
)
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.host import Host
from envtorch.protocol.ledger import Ledger
from envtorch.protocol.phases import Event, Phase, advance
from envtorch.protocol.wire import Reply
from envtorch.server.runners.runner import Housed, Runner, as_ours
from envtorch.server.runners.thread_results import Cancel, Delivery, Done
from envtorch.server.sessions.outcomes import (
    Outcome,
    Settled,
    SharedOutcome,
    as_future,
    is_pending,
    look_at,
    settle,
)
from envtorch.server.sessions.session_context import Holder, Upkeep
from envtorch.server.sessions.slots import Names
from envtorch.server.sessions.turn import Turn
from envtorch.server.telemetry.metrics import Meter
from envtorch.types import SessionInfo

__all__ = ["Session"]

logger = logging.getLogger(__name__)

REQUEST_ID: ContextVar[int | str | None] = ContextVar("request_id", default=None)
"""The id of the request that this task answers, for the log."""

T = TypeVar("T")
V = TypeVar("V")
Work = Generator[Any, Any, T]


class Session:
    """Everything there is to one session, in one object.

    However many doors lead to it, its environment is called by one at a time. A session that no socket
    holds ends when nobody called it for `unheld_s` seconds; the time a call takes does not count.
    """

    def __init__(
        self,
        host: Host,
        runner: Runner,
        upkeep: Upkeep,
        *,
        unheld_s: float | None,
        names: Names | None = None,
        copy_of: Host | None = None,
    ) -> None:
        self.names = names or Names.new()
        self.id, self.token = self.names
        """Whoever shows it may take the session up. It is in no URL, no log and no state."""
        self._environment = host
        self.host = host if upkeep.recorder is None else upkeep.recorder.follow(host, copy_of)
        """What the doors call: the environment itself, or what records it."""
        self.phase = advance(Phase.STARTING, Event.OPENED)
        self.steps = 0
        self.parent_id: str | None = None
        """The session that this one is a copy of, if it is one."""
        self.unheld_s = unheld_s
        self.socket_attached = False
        self.close_when_detached = False
        self.ledger: Ledger[Outcome] = Ledger(is_pending)
        self._immediate, self.joins = runner.immediate, runner.joins
        self._start = runner.start
        self._started: tuple[int, Cancel] | None = None
        self._request_id: int | None = None
        self._holder: Holder | None = None
        self._runner = runner
        self._upkeep = upkeep
        self._turn = Turn()
        self._gone: str | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._created_at = time.time()
        self._active_at = upkeep.meter.clock()
        self._watch_lease()

    def __repr__(self) -> str:
        return f"<Session {self.id[:8]} {self.phase.value} {self.steps} steps>"

    @property
    def info(self) -> SessionInfo:
        return SessionInfo(
            session_id=self.id,
            created_at=self._created_at,
            last_activity_at=time.time() - (self._upkeep.meter.clock() - self._active_at),
            step_count=self.steps,
            environment_type=self.host.name,
        )

    @property
    def is_idle(self) -> bool:
        return not self._turn.is_taken

    # Calling the environment.

    async def run(self, flow: Work[T], kind: str = "call", *, timeout_s: float | None = None) -> T:
        """What a flow of the host comes to, when it is this call's turn.

        Past `timeout_s`, counted from now, `TimedOut` is raised. A call that awaits is then cancelled and
        the session is usable; one that blocks a thread cannot be stopped, and takes the session with it.
        """
        return await self._call(kind, timeout_s, self._runner.run, flow)

    async def step(self, flow: Work[T], *, timeout_s: float | None = None) -> T:
        """`run`, for a flow that steps the environment."""
        result = await self._call("step", timeout_s, self._runner.run, flow)
        self.steps += 1
        return result

    def step_at_once(self, action: bytes, format: Format = JSON) -> Reply | None:
        """`step`, for an environment that never waits: no task, no turn, nothing to cancel.

        None when there is something to wait for: then nothing was done.
        """
        host, upkeep = self._immediate, self._upkeep
        if host is None or not upkeep.is_plain or self._turn.is_taken or self._gone is not None:
            return None
        began = self._active_at = upkeep.meter.clock()
        try:
            reply = host.step_at_once(action, format)
        except EnvTorchError as error:
            self._count(began, error)
            raise
        if reply is None:
            self.wants_awaiting()
            return None
        self.steps += 1
        upkeep.meter.stepped(began)
        if self._expiry is not None:
            self._watch_lease()
        return reply

    def start_step(
        self, action: bytes, format: Format, done: Done, delivery: Delivery | None = None
    ) -> Cancel | None:
        """`step`, its outcome given to `done`: no task stands between an environment and its caller.

        What is returned takes the step back. None when it has to wait: then nothing was done.
        """
        upkeep = self._upkeep
        if self._gone is not None or not upkeep.is_plain or self._start is None:
            return None
        if not self._turn.take_at_once():
            return None
        upkeep.busy(+1)
        self._enter(Event.CALLED)
        return self._start(action, format, partial(self._stepped, done, upkeep.meter.clock()), delivery)

    # Steps taken together with those of other sessions.

    @staticmethod
    def may_join(sessions: "Iterable[Session]", id: int) -> bool:
        """Whether all of these can answer request `id`, a new one, at once.

        This and `joined` are what a batch costs each of its sessions, and therefore loops.
        """
        for session in sessions:
            if session.joins is None or session._gone is not None or session._turn.is_taken:
                return False
            if id <= session.ledger.newest:
                return False
        return True

    @staticmethod
    def joined(
        sessions: "Iterable[Session]", id: int, outcome: SharedOutcome, acknowledged: int | None, now: float
    ) -> None:
        """The steps of a batch were taken, and this came of it."""
        for session in sessions:
            session.steps += 1
            session._active_at = now
        Ledger.renew_all([session.ledger for session in sessions], id, outcome, acknowledged)

    def outcome(self, id: int | str) -> Outcome | None:
        """What request `id` came to, or will; None for one that was not taken."""
        found = self.ledger.find(id)
        return Settled(found.share_of(self.id)) if isinstance(found, SharedOutcome) else found

    def failed(self, error: EnvTorchError) -> None:
        """A step of a batch failed."""
        self._count(self.meter.clock(), error)

    @property
    def steps_together(self) -> bool:
        """Whether the environment's author wrote how it steps together with others."""
        return self.joins is not None and self.joins.step_many is not None

    @property
    def delivers(self) -> bool:
        """Whether a step's reply may be delivered from where the environment lives."""
        return self._runner.delivers

    def wants_awaiting(self) -> None:
        """The environment's step turned out to be a coroutine."""
        self._immediate = None
        if not self.steps_together:
            self.joins = None

    @property
    def meter(self) -> Meter:
        return self._upkeep.meter

    def _stepped(self, done: Done, began: float, reply: Reply | None, error: EnvTorchError | None) -> None:
        """What `start_step` began has ended."""
        self._upkeep.busy(-1)
        self._count(began, error)
        if error is None:
            self.steps += 1
        elif isinstance(error, Cancelled):
            if not self._runner.can_stop:
                self._poison("a call that could not be stopped was cancelled")
            error.details["usable"] = self.is_usable
        self._leave()
        self._turn.give()
        done(reply, error)

    def _count(self, began: float, error: EnvTorchError | None) -> None:
        self._upkeep.meter.answered("step", began, error)
        if isinstance(error, EnvironmentFailed):
            self._report(error)

    def _leave(self) -> None:
        """A call is over."""
        self._active_at = self._upkeep.meter.clock()
        if self._runner.ended is not None and self._gone is None:
            self._poison(self._runner.ended)
        if self.phase is not Phase.CLOSED:
            self._enter(Event.ANSWERED)
        self._watch_lease()

    async def fork(self, count: int, *, timeout_s: float | None = None) -> list[Housed]:
        """Copies of the environment, made in its turn, where it lives; they are nobody's session yet."""
        return await self._call("fork", timeout_s, partial(self._runner.fork, self._environment), count)

    def twin(self, copy: Housed, *, unheld_s: float, names: Names) -> "Session":
        """A session for a copy of this one's environment: its counters are copied with it."""
        session = Session(
            copy.host, copy.runner, self._upkeep, unheld_s=unheld_s, names=names, copy_of=self.host
        )
        session.steps = self.steps
        session.parent_id = self.id
        return session

    async def _call(self, kind: str, timeout_s: float | None, act: Callable[[V], Awaitable[T]], what: V) -> T:
        if self._upkeep.draining:
            raise Draining("the server is shutting down; this call was not made")
        with self._upkeep.meter.call(kind), self._upkeep.span(kind, self.id):
            self._upkeep.busy(+1)
            try:
                if timeout_s is None:
                    return await self._take_turn(act, what)
                return await self._within(self._take_turn(act, what), timeout_s)
            except EnvironmentFailed as error:
                self._report(error)
                raise
            finally:
                self._upkeep.busy(-1)

    async def _take_turn(self, act: Callable[[V], Awaitable[T]], what: V) -> T:
        self._require_life()  # before the wait as well: a session that closes may never give its turn away
        async with self._turn:
            self._require_life()
            self._enter(Event.CALLED)
            try:
                return await act(what)
            except asyncio.CancelledError:
                if not self._runner.can_stop:
                    self._poison("a call that could not be stopped was cancelled or ran past its deadline")
                raise
            finally:
                self._leave()

    async def _within(self, call: Coroutine[Any, Any, T], timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except TimeoutError as error:
            if isinstance(error, EnvTorchError):
                raise
            raise TimedOut(
                f"no answer within {timeout_s:g} s", timeout_s=timeout_s, usable=self.is_usable
            ) from None

    def _require_life(self) -> None:
        if self._gone is not None:
            raise SessionLost(f"the session is gone: {self._gone}")

    @property
    def is_usable(self) -> bool:
        """Whether the session takes another call."""
        return self._gone is None

    def _poison(self, reason: str) -> None:
        """No call any more; the slot is free when the one that still runs has returned."""
        self._gone = reason
        logger.warning("session %s: %s", self.id[:8], reason)
        self._start_closing()

    def _report(self, error: EnvironmentFailed) -> None:
        """Tell the client in a sentence, the log in full, and give both the same error id."""
        error.details["error_id"] = error_id = secrets.token_hex(6)
        cause = error.__cause__ or error
        logger.warning(
            "session %s: %s [error %s]",
            self.id[:8],
            error,
            error_id,
            exc_info=cause,
            extra={
                "session_id": self.id,
                "request_id": REQUEST_ID.get() or self._request_id,
                "error_id": error_id,
            },
        )

    def _enter(self, event: Event) -> None:
        self.phase = advance(self.phase, event)

    # Exactly once.

    def settle_step(
        self, id: int, action: bytes, format: Format, acknowledged: int | None = None
    ) -> "Settled | None":
        """A new request's step, taken at once; None when it has to wait, and nothing was done."""
        self._request_id = id
        try:
            reply = self.step_at_once(action, format)
        except EnvTorchError as error:
            settled = Settled(None, error)
        else:
            if reply is None:
                return None
            settled = Settled(reply)
        self.ledger.renew(id, settled, acknowledged)
        return settled

    def step_once(
        self,
        id: int,
        action: bytes,
        format: Format,
        tell: Callable[[Outcome], None],
        acknowledged: int | None = None,
        delivery: Delivery | None = None,
    ) -> bool:
        """`settle_step`, or the step is started; `tell` is given its outcome, in the moment that it is there.

        False when it has to wait, and nothing was done.
        """
        settled = self.settle_step(id, action, format, acknowledged)
        if settled is not None:
            tell(settled)
            return True
        outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        cancel = self.start_step(action, format, partial(settle, outcome, tell), delivery)
        if cancel is None:
            return False
        self._started = (id, cancel)
        self.ledger.renew(id, outcome, acknowledged)
        return True

    def once(
        self, id: int | str, start: Callable[[], Coroutine[Any, Any, T]], context: Context | None = None
    ) -> "asyncio.Future[T]":
        """The task that answers request `id`: a new one, or the one that was started for it before."""
        before = self.outcome(id)
        if before is not None:
            self._upkeep.meter.repeated += 1
            return as_future(before)
        task = asyncio.get_running_loop().create_task(self._answer(id, start), context=context)
        task.add_done_callback(look_at)
        self.ledger.take(id, task)
        return task

    async def _answer(self, id: int | str, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a call comes to. Whatever goes wrong ends as one of our errors."""
        REQUEST_ID.set(id)
        try:
            return await start()
        except EnvTorchError:
            raise
        except asyncio.CancelledError:
            raise Cancelled("the request was taken back", usable=self.is_usable) from None
        except Exception as error:
            raise as_ours(error) from error

    def cancel(self, id: int | str) -> bool:
        """Take a request back; say whether there was still something to take back."""
        outcome = self.ledger.find(id)
        if outcome is None or outcome.done():
            return False
        if self._started is not None and self._started[0] == id:
            return self._started[1]()
        return outcome.cancel()

    # Holding on, and letting go.

    def hold(self, holder: Holder) -> None:
        """A socket takes the session up, from whoever had it before."""
        before, self._holder = self._holder, holder
        if before is not None:
            before.lost(self)
        elif self.phase in (Phase.DETACHED, Phase.ADRIFT):
            self._enter(Event.ATTACHED)
            self._upkeep.meter.resumed += 1
        self._watch_lease()

    def drop(self, holder: Holder) -> None:
        """The socket is gone; the session waits to be taken up again."""
        if self._holder is holder and self.phase is not Phase.CLOSED:
            self._holder = None
            self._enter(Event.DETACHED)
            self._upkeep.meter.detached += 1
            self._watch_lease()

    def attach(self) -> None:
        """A socket joins a session that lives without one. Raises `SessionLost` when another one has."""
        if self.socket_attached:
            raise SessionLost(f"Session {self.id} already has an attached WebSocket")
        self.socket_attached = True
        self._watch_lease()

    async def detach(self) -> None:
        """The socket leaves; the session lives on, unless its end was already asked for."""
        self.socket_attached = False
        if self.close_when_detached:
            await self.close("it was asked to close")
        else:
            self._watch_lease()

    def _watch_lease(self) -> None:
        """The lease runs while nothing else happens."""
        if self.unheld_s is None and self._expiry is None:
            return
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        held = self.socket_attached or self._holder is not None
        if self.unheld_s is None or held or self.phase not in (Phase.READY, Phase.DETACHED):
            return
        self._expiry = asyncio.get_running_loop().call_later(self.unheld_s, self._expire)

    def _expire(self) -> None:
        self._gone = f"nobody called it for {self.unheld_s:g} s"
        logger.info("session %s: closed, %s", self.id[:8], self._gone)
        self._start_closing()

    def _start_closing(self) -> "asyncio.Task[None]":
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        return self._closing

    async def close(self, reason: str = "it was closed") -> None:
        """End the session after the call that runs, if one does. Closing twice is closing once."""
        self._gone = self._gone or reason
        # The closing goes on even if whoever asked for it is gone: it is what frees the slot.
        await asyncio.shield(self._start_closing())

    async def _close(self) -> None:
        try:
            async with self._turn:
                self._enter(Event.CLOSED)
                try:
                    if self._runner.ended is None:
                        await self._runner.run(self.host.close())
                except EnvironmentFailed as error:
                    self._report(error)
                finally:
                    await self._runner.close()
        finally:
            self._watch_lease()
            self._upkeep.forget(self)
