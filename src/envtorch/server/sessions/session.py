"""One live session: an environment, where it runs, who holds it, and what came of the calls made in it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from envtorch.errors import Cancelled, Draining, EnvironmentFailed, EnvTorchError, SessionLost, TimedOut
from envtorch.protocol.calls import STEPPING, Call
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.host import failure_of
from envtorch.protocol.ledger import CallOutcome, Digest, Ledger
from envtorch.protocol.mcp_result import is_done
from envtorch.protocol.phases import Event, SessionPhase, advance
from envtorch.server.runners.runner import Runner
from envtorch.server.sessions.awaited_outcome import outcome_of, settle_with
from envtorch.server.sessions.session_context import Holder, SessionContext
from envtorch.server.sessions.slots import Names
from envtorch.server.telemetry.failure_log import log_failure
from envtorch.server.telemetry.tracing import no_span
from envtorch.types import SessionInfo

if TYPE_CHECKING:
    from envtorch.recording.session_recorder import SessionRecorder  # only a server that records loads it

__all__ = ["Session"]

logger = logging.getLogger(__name__)


UNSTOPPABLE = "a call that could not be stopped was cancelled or ran past its deadline"


class Session:
    """Everything there is to one session, in one object.

    `submit` is the one way to the environment, for every door: the request is noted in the ledger, waits for
    its turn, runs once, and comes to an outcome. A session that no socket holds ends when nobody called it
    for `unheld_s` seconds; the time a call takes does not count, unless its socket is gone.
    """

    def __init__(
        self,
        runner: Runner,
        context: SessionContext,
        *,
        unheld_s: float | None,
        names: Names | None = None,
        copy_of: "Session | None" = None,
    ) -> None:
        self.names = names or Names.new()
        self.id, self.token = self.names
        """The token a client needs to attach to this session. It is in no URL, no log and no state."""
        self.runner = runner
        self.steps: int = 0 if copy_of is None else copy_of.steps
        self.parent_id: str | None = None if copy_of is None else copy_of.id
        """The session that this one is a copy of, if it is one."""
        self.unheld_s = unheld_s
        self.socket_attached = False
        self.close_when_detached = False
        self.is_open_by_id = False
        """Whether callers may use the session by its id, as those of `openenv/session/create` do."""
        self.ledger = Ledger()
        self.is_stuck = False
        """Whether a call does not return that nobody waits for any more. The session's slot stays taken."""
        self._context = context
        self._clock = context.meter.clock
        self._recorder: SessionRecorder | None = None
        if context.recorder is not None:
            self._recorder = context.recorder.follow(copy_of._recorder if copy_of is not None else None)
        self._rest = advance(SessionPhase.STARTING, Event.OPENED)
        """The phase, were no call running."""
        self._running: CallOutcome | None = None
        self._waiting: deque[CallOutcome] = deque()
        self._is_advancing = False
        self.is_over: bool = copy_of is not None and copy_of.is_over
        """Whether a step or a tool's result, by any door, said that the episode is done."""
        self._idle: asyncio.Event | None = None
        self._holder: Holder | None = None
        self._was_dropped = False
        self._gone: str | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._created_at = time.time()
        self._active_at = self._clock()
        self._watch_lease()

    def __repr__(self) -> str:
        return f"<Session {self.id[:8]} {self.phase.value} {self.steps} steps>"

    @property
    def info(self) -> SessionInfo:
        return SessionInfo(
            session_id=self.id,
            created_at=self._created_at,
            last_activity_at=time.time() - (self._clock() - self._active_at),
            step_count=self.steps,
            environment_type=self.runner.name,
        )

    @property
    def phase(self) -> SessionPhase:
        if self._running is None or self._rest is SessionPhase.CLOSED:
            return self._rest
        return advance(self._rest, Event.CALLED)

    @property
    def is_idle(self) -> bool:
        return self._running is None

    @property
    def is_usable(self) -> bool:
        """Whether the session takes another call."""
        return self._gone is None

    @property
    def is_free(self) -> bool:
        """Whether a call would be made at once."""
        return self.is_usable and self.is_idle and not self._waiting and self._has_room

    # Calling the environment.

    def submit(
        self,
        call: Call,
        *,
        id: int | str | None = None,
        digest: int | None = None,
        acknowledged: int | None = None,
        timeout_s: float | None = None,
        is_ready: bool = True,
        is_question: bool = False,
    ) -> CallOutcome:
        """Have a call made in its turn, exactly once; what came of it, or will. Never raises, never blocks.

        A request of the same `id` gets the same outcome, and an error if its `digest` is another one. Past
        `timeout_s`, counted from now, the outcome is `TimedOut`: a call that awaits is then cancelled, and
        the session goes on; one that blocks a thread cannot be stopped, and the session is lost with it.
        A call that is not ready keeps its turn until it is made ready or given up.
        The lease runs on during a question, which somebody else than the session's caller asks.
        """
        if id is not None:
            try:
                known = self.ledger.find(id, digest)
            except EnvTorchError as error:
                return CallOutcome.refused(call, error)
            if known is not None:
                self._context.meter.repeated += 1
                return known
        is_beginning = self._context.finishing and call.operation == "reset"
        if self._gone is not None or self._context.draining or is_beginning:
            return CallOutcome.refused(call, self._refusal())
        if self._recorder is not None and (refusal := self._recorder.refusal(call)) is not None:
            return CallOutcome.refused(call, refusal)
        outcome = CallOutcome(call, id, is_question=is_question)
        outcome.is_ready = is_ready
        if id is not None:
            self.ledger.note(id, outcome, digest, acknowledged)
        self._context.meter.busy(+1)
        if timeout_s is not None:
            loop = asyncio.get_running_loop()
            outcome.deadline = loop.call_later(timeout_s, self._time_out, outcome, timeout_s)
        if self._context.span is not no_span:
            outcome.then(self._context.span(call.operation, self.id))
        self._waiting.append(outcome)
        self.proceed()
        return outcome

    async def call(
        self, call: Call, *, id: str | None = None, digest: int | None = None, timeout_s: float | None = None
    ) -> Any:
        """`submit`, and its result. Raises its error. Giving up on the wait does not take the call back."""
        return await outcome_of(self.submit(call, id=id, digest=digest, timeout_s=timeout_s))

    def once(
        self,
        id: int,
        digest: int,
        acknowledged: int | None,
        work: Callable[[], Coroutine[Any, Any, Any]],
    ) -> CallOutcome:
        """`submit`, for a request that is more than one call of the environment: `work` runs once.

        It is called at once, so that a call which it submits before it returns has its turn by now.
        """
        request = Call("work")
        try:
            known = self.ledger.find(id, digest)
        except EnvTorchError as error:
            return CallOutcome.refused(request, error)
        if known is not None:
            self._context.meter.repeated += 1
            return known
        outcome = CallOutcome(request, id)
        self.ledger.note(id, outcome, digest, acknowledged)
        try:
            rest = work()
        except Exception as error:
            self.ledger.settle(outcome, None, failure_of("work", error))
        else:
            settle_with(rest, outcome, self.ledger)
        return outcome

    def _refusal(self) -> EnvTorchError:
        if self._gone is not None:
            return SessionLost(f"the session is gone: {self._gone}")
        return Draining("the server is shutting down; this call was not made")

    def _start(self, outcome: CallOutcome) -> None:
        self._running = outcome
        outcome.began = self._clock()
        if self._recorder is not None:
            self._recorder.begin()
        if self._expiry is not None and not self._was_dropped and not outcome.is_question:
            self._watch_lease()
        self.runner.start(outcome.call, self._answered)

    def _answered(self, result: Any, error: EnvTorchError | None) -> None:
        """The runner has made the call that runs."""
        outcome = self._running
        assert outcome is not None
        now = self._clock()
        self._account(outcome, now, result, error)
        self._running = None
        self.is_stuck = False
        if self.runner.ended is not None and self._gone is None:
            self._end(self.runner.ended)
        if not outcome.is_question:
            self._active_at = now
            if self.unheld_s is not None and self._holder is None:
                self._watch_lease()
        self.ledger.settle(outcome, result, error)
        self.proceed()

    def proceed(self) -> None:
        """Start what waits, while the socket has room for answers. Calls answered at once are not nested."""
        if not self._is_advancing:
            self._is_advancing = True
            while self._may_start:
                self._start(self._waiting.popleft())
            self._is_advancing = False
        if self._idle is not None and self._running is None:
            self._idle.set()

    def make_ready(self, outcome: CallOutcome) -> None:
        """A call that kept its turn may begin."""
        outcome.is_ready = True
        self.proceed()

    @property
    def _may_start(self) -> bool:
        return bool(self._waiting) and self._waiting[0].is_ready and self._running is None and self._has_room

    @property
    def _has_room(self) -> bool:
        return self._holder is None or self._holder.has_room()

    def _account(self, outcome: CallOutcome, now: float, result: Any, error: EnvTorchError | None) -> None:
        """Count a call that was made, record it, and log its failure."""
        operation = outcome.call.operation
        if error is None and operation in STEPPING:
            self.steps += 1
        if isinstance(result, Encoded):
            self.is_over = result.done or (self.is_over and operation != "reset")
        elif operation == "tool_result" and error is None:
            self.is_over = self.is_over or is_done(result)
        self._context.meter.ended(operation, now - outcome.began, outcome.error or error)
        if self._recorder is not None:
            gave_up = outcome.is_settled and error is not None
            self._recorder.note(outcome.call, None if gave_up else error or result)
        if isinstance(error, EnvironmentFailed) and not outcome.is_settled:
            log_failure(error, self.id, outcome.id)

    # Steps taken together with those of other sessions.

    def may_step_together(self, id: int) -> bool:
        """Whether this session can take a new step right now, in one call with others."""
        host = self.runner.steps_together
        return (
            host is not None
            and host.has_begun
            and self.is_free
            and id > self.ledger.newest
            and self._recorder is None
            and not self._context.draining
        )

    @classmethod
    def submit_together(
        cls,
        sessions: "Sequence[Session]",
        call: Call,
        act: Callable[[], "tuple[Sequence[Any], EnvTorchError | None]"],
        *,
        id: int,
        digests: Sequence[Digest],
        acknowledged: int | None,
    ) -> list[CallOutcome]:
        """`submit`, for sessions that all `may_step_together`: one call for all of them, noted in each.

        `act` makes the call. It gives a result for each session, or the error of all of them.
        """
        outcomes = []
        for session, digest in zip(sessions, digests, strict=True):
            outcome = session._running = CallOutcome(call, id)
            outcome.began = session._clock()
            session.ledger.note(id, outcome, digest, acknowledged)
            session._context.meter.busy(+1)
            outcomes.append(outcome)
        results, error = act()
        each_s = (sessions[0]._clock() - outcomes[0].began) / len(sessions)
        for place, session in enumerate(sessions):
            outcomes[place].began = session._clock() - each_s
            came = results[place] if error is None else None
            if isinstance(came, EnvTorchError):
                session._answered(None, came)
            else:
                session._answered(came, error)
        return outcomes

    # Giving up on a call.

    def cancel(self, id: int | str) -> bool:
        """Take a request back; say whether there was still something to take back."""
        try:
            outcome = self.ledger.find(id)
        except EnvTorchError:
            return False
        return outcome is not None and self.give_up(outcome, Cancelled("the request was taken back"))

    def _time_out(self, outcome: CallOutcome, timeout_s: float) -> None:
        self.give_up(outcome, TimedOut(f"no answer within {timeout_s:g} s", timeout_s=timeout_s))

    def give_up(self, outcome: CallOutcome, error: EnvTorchError, *, stop: bool = True) -> bool:
        """Settle a call that nobody waits for any more. One that runs is stopped, or left to run in vain."""
        if outcome.is_settled:
            return False
        if outcome is self._running:
            if stop and not self.runner.stop():
                self._end(self.runner.ended or UNSTOPPABLE)
        elif outcome in self._waiting:
            self._waiting.remove(outcome)
            self._context.meter.busy(-1)
            self._context.meter.answered(outcome.call.operation, 0.0, error)
        error.details["usable"] = self.is_usable
        self.ledger.settle(outcome, None, error)
        self.proceed()  # what waited for the turn of a call that was not ready
        return True

    def _end(self, reason: str) -> None:
        """Take no call any more; the slot is free when the one that still runs has returned."""
        self._gone = reason
        logger.warning("session %s: %s", self.id[:8], reason)
        self._start_closing()

    # Holding on, and letting go.

    def hold(self, holder: Holder) -> None:
        """A socket attaches to the session. The one that was attached before is told that it lost it."""
        before, self._holder = self._holder, holder
        self._was_dropped = False
        if before is not None:
            before.lost(self)
        elif self._rest is SessionPhase.DETACHED:
            self._rest = advance(self._rest, Event.ATTACHED)
            self._context.meter.resumed += 1
        self._watch_lease()
        self.proceed()

    def drop(self, holder: Holder) -> None:
        """The socket is gone; the session waits for another one to attach, whether a call runs or not."""
        if self._holder is holder and self._rest is not SessionPhase.CLOSED:
            self._holder = None
            self._was_dropped = True
            self._rest = advance(self._rest, Event.DETACHED)
            self._context.meter.detached += 1
            self._watch_lease()
            self.proceed()

    def attach(self) -> None:
        """A socket joins a session that lives without one. Raises `SessionLost` when another one has."""
        if self.socket_attached:
            raise SessionLost(f"Session {self.id} already has an attached WebSocket")
        self.socket_attached = True
        self._watch_lease()

    def renew(self) -> None:
        """Begin the lease anew: whoever uses the session has said that it is there."""
        self._watch_lease()

    async def detach(self) -> None:
        """The socket leaves; the session lives on, unless its end was already asked for."""
        self.socket_attached = False
        if self.close_when_detached:
            await self.close("it was asked to close")
        else:
            self._watch_lease()

    def _watch_lease(self) -> None:
        """Restart the lease, which runs while no socket holds the session.

        It stops for a call, unless that call's own socket is gone or it is a question.
        """
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        held = self.socket_attached or self._holder is not None
        is_over = self._rest is SessionPhase.CLOSED or self._gone is not None
        is_calling = self._running is not None and not self._running.is_question and not self._was_dropped
        if self.unheld_s is None or held or is_over or is_calling:
            return
        self._expiry = asyncio.get_running_loop().call_later(self.unheld_s, self._expire)

    def _expire(self) -> None:
        if not self._was_dropped and any(not waiting.is_question for waiting in self._waiting):
            self._watch_lease()  # the caller's call waits for a question to be answered
            return
        self._gone = f"nobody called it for {self.unheld_s:g} s"
        logger.info("session %s: closed, %s", self.id[:8], self._gone)
        self._start_closing()

    async def close(self, reason: str = "it was closed") -> None:
        """End the session after the call that runs, if one does. Closing twice is closing once."""
        self._gone = self._gone or reason
        # The closing goes on even if whoever asked for it is gone: it is what frees the slot.
        await asyncio.shield(self._start_closing())

    def _start_closing(self) -> "asyncio.Task[None]":
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        while self._waiting:
            outcome = self._waiting.popleft()
            self._context.meter.busy(-1)
            self.ledger.settle(outcome, None, self._refusal())
        return self._closing

    async def _close(self) -> None:
        try:
            await self._until_idle()
            if self.runner.ended is None:
                self._context.meter.busy(+1)
                self._start(CallOutcome(Call("close")))
                await self._until_idle()
            self._rest = advance(self._rest, Event.CLOSED)
            await self.runner.close()
        finally:
            self._rest = SessionPhase.CLOSED
            self._watch_lease()
            self._context.forget(self)

    async def _until_idle(self) -> None:
        """Wait for the call that runs. One that does not end in time is stopped, or the session is stuck."""
        if self._running is None:
            return
        self._idle = asyncio.Event()
        if await self._idle_within(self._context.stop_timeout_s):
            return
        is_stopping = self.runner.stop() or self.runner.ended is not None
        if not (is_stopping and await self._idle_within(self._context.stop_timeout_s)):
            self._get_stuck()
            await self._idle.wait()

    async def _idle_within(self, limit_s: float) -> bool:
        assert self._idle is not None
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _get_stuck(self) -> None:
        self.is_stuck = True
        call = self._running.call.operation if self._running is not None else "a call"
        logger.error(
            "session %s is stuck: %s of %s does not return, and its slot stays taken; "
            "isolation='process' makes such a call killable",
            self.id[:8],
            call,
            self.runner.name,
        )
