"""Running code as a flow: the conversation with the live interpreter, its deadline and its end."""

import contextlib
import signal
import time
from collections.abc import Mapping
from typing import Any

from envtorch.errors import TimedOut

from . import protocol
from .core import Core, new_identifier
from .driver import AskOwner, Flow, Wait
from .flows import await_event, close_all, order
from .handle import INTERPRETER
from .monitor import memory_limit
from .results import Failure, Outcome, Result, Variable
from .sandbox_phases import SandboxPhase

__all__ = ["lose", "run", "speak", "variables"]

_END_TIMEOUT_S = 5.0
_CHUNK = 1 << 16
"""Allocated before each read: beyond 128 kB the allocator would map and unmap memory every time."""
_VALUE_LIMIT = 65536
"""What an interpreter of ours tells at most of a value, in characters, and of each text of an exception."""
_MOST_CPU_S = 1e9
_NOTHING = memoryview(b"")
_SAID_OUTCOMES = {
    outcome.value: outcome
    for outcome in (
        Outcome.OK,
        Outcome.ERROR,
        Outcome.OUT_OF_MEMORY,
        Outcome.OUT_OF_PROCESSES,
        Outcome.OUT_OF_DISK,
    )
}
"""What an interpreter may say of itself. That it timed out or crashed is for us to say."""


def run(core: Core, code: str, *, timeout_s: float | None = None) -> Flow[Result]:
    """Run `code` in the live interpreter. Whatever the code does, this answers with a `Result`."""
    core.require_interpreter()
    core.interrupted = False
    core.excess = None
    identifier = new_identifier()
    limit = core.policy.timeout_s if timeout_s is None else timeout_s
    began = time.monotonic()
    talk = Talk(core, identifier, began + limit)
    request = protocol.run_request(identifier, code, sorted(core.functions))
    said = yield from talk.converse(request, protocol.RunResult)
    if said is None:
        status = yield from lose(core, _why_lost(core, talk))
        outcome = _outcome_of_loss(core, talk)
        return Result(
            outcome=outcome,
            exit_status=status,
            duration_s=time.monotonic() - began,
            alive=False,
            exception=Failure(outcome.name, core.why_lost, core.why_lost),
        )
    assert isinstance(said, protocol.RunResult)
    result = _result_of(core, said, timed_out=talk.overdue, elapsed_s=time.monotonic() - began)
    if core.ran_out_of_processes() or result.outcome in (Outcome.OUT_OF_PROCESSES, Outcome.TIMED_OUT):
        # What a fork bomb left behind would eat the time of whoever runs next.
        yield from order(core, "sweep", "swept")
    return result


def variables(core: Core) -> Flow[dict[str, Variable]]:
    """The names the agent has defined. Raises `TimedOut` if showing them took too long."""
    core.require_interpreter()
    identifier = new_identifier()
    request = protocol.frame({"type": "variables", "id": identifier})
    said = yield from speak(core, identifier, request, protocol.Variables, timeout_s=core.policy.timeout_s)
    assert isinstance(said, protocol.Variables)
    return {name: Variable(found.type, found.repr) for name, found in said.variables.items()}


def speak(
    core: Core, identifier: str, request: bytes, expected: type[protocol.Message], *, timeout_s: float
) -> Flow[protocol.Message]:
    """One request and its answer, outside of a run. An interpreter that cannot give it is ended."""
    talk = Talk(core, identifier, time.monotonic() + timeout_s)
    said = yield from talk.converse(request, expected)
    if said is None:
        yield from lose(core, talk.why)
        raise TimedOut(f"the interpreter did not answer: {core.why_lost}")
    return said


def lose(core: Core, why: str) -> Flow[int]:
    """End an interpreter that cannot go on. Answers with its exit status."""
    core.handle.signal(signal.SIGKILL)
    core.handle.tell({"op": "sweep"})
    came, _ = yield from await_event(core, "exited", job=INTERPRETER, timeout_s=_END_TIMEOUT_S)
    core.lose(why)
    if not came:
        core.handle.kill()
        core.lose(f"{why}; its init is gone too")
        return -signal.SIGKILL
    return core.handle.exits[INTERPRETER].status


class Talk:
    """One exchange with an interpreter that may say anything, or nothing, or end."""

    def __init__(self, core: Core, identifier: str, deadline: float) -> None:
        self._core = core
        self._identifier = identifier
        self._deadline = deadline
        self._out = _NOTHING
        """What is left to send. A view, since what is sent piece by piece must not be copied for each."""
        self._received = False
        """Something has been received since the last time that we waited."""
        self.overdue = False
        self.why = ""

    def converse(self, request: bytes, expected: type[protocol.Message]) -> Flow[protocol.Message | None]:
        """The answer of the expected type; None when there will be none, and `why` says the reason."""
        self._out = memoryview(request)
        core = self._core
        if core.phase is SandboxPhase.SETTLING:
            # The init answers in order: then a signal that stopped an earlier request has been sent.
            yield from order(core, "ping", "pong")
            core.move(SandboxPhase.READY)
        before = core.phase  # a sandbox that calls its owner may be forked meanwhile
        core.move(SandboxPhase.BUSY)
        core.begin_work()
        try:
            core.handle.reader.begin()
            said = yield from self._listen(expected)
            if said is not None:
                core.move(before)
            return said
        except protocol.Nonsense as error:
            self.why = f"it spoke nonsense: {error}"
            return None
        except BaseException:
            # Whoever waited has been cancelled: stop the code, and never send the rest of half a frame.
            self._core.handle.signal(signal.SIGINT)
            if not (core.lost or core.closed):
                core.move(SandboxPhase.SETTLING)
            if self._out:
                self._core.lose("a request was cut short")
            raise
        finally:
            self._core.end_work()

    def _listen(self, expected: type[protocol.Message]) -> Flow[protocol.Message | None]:
        """A call of the agent's is answered, and the answer sent, before the next one is read. Between two of
        them everybody else has a turn, as after each piece that was received."""
        reader, allowed = self._core.handle.reader, (expected, protocol.OwnerCall)
        while True:
            said = None if self._out else reader.next(self._identifier, allowed)
            if isinstance(said, protocol.OwnerCall):
                yield from self._answer(said)
                if reader.has_more:
                    yield Wait(deadline=time.monotonic())
            elif said is not None:
                return said
            elif not (yield from self._exchange()):
                return None

    def _exchange(self) -> Flow[bool]:
        """Send what there is to send, else receive, or wait for either. False when the talk is over."""
        core = self._core
        channel = core.handle.data.fileno()
        if time.monotonic() >= self._deadline and not self._extend():
            return False
        try:
            if self._out:
                self._send()
                return True
            if self._received and INTERPRETER not in core.handle.exits:
                self._received = False
                return (yield from self._wait_for_more(channel))
            data = core.handle.data.recv(_CHUNK)
        except BlockingIOError:
            return (yield from self._wait_for_more(channel))
        except OSError:
            data = b""
        if not data:
            self.why = "it ended"
            return False
        self._received = True
        core.handle.reader.feed(data)
        return True

    def _send(self) -> None:
        """Send what the socket takes. Raises `BlockingIOError` when it takes nothing now."""
        self._out = self._out[self._core.handle.data.send(self._out) :] or _NOTHING

    def _wait_for_more(self, channel: int) -> Flow[bool]:
        """False when the init says that the interpreter has ended, and all that it said has been read: the
        processes that it started may hold its socket open."""
        core = self._core
        control = core.handle.control.fileno()
        ready: frozenset[int] = frozenset()
        if INTERPRETER not in core.handle.exits:
            readers, writers = ([control], [channel]) if self._out else ([channel, control], [])
            ready = yield Wait(readers, writers, self._deadline)
        gone = False
        if control in ready:
            events = core.handle.events()
            for _, descriptors in events or ():
                close_all(descriptors)
            gone = events is None
        if channel in ready or not (gone or INTERPRETER in core.handle.exits):
            return True
        self.why = "it ended"
        return False

    def _extend(self) -> bool:
        """At the deadline: interrupt, and give the code its grace; after that, give up."""
        if self.overdue:
            self.why = "it did not stop when it was interrupted at its deadline"
            return False
        self.overdue = True
        self._core.handle.signal(signal.SIGINT)
        self._deadline = time.monotonic() + self._core.policy.grace_s
        return True

    def _answer(self, call: protocol.OwnerCall) -> Flow[None]:
        """Call an exposed function. The time it takes is not the agent's."""
        began = time.monotonic()
        reply: Mapping[str, Any]
        function = self._core.functions.get(call.name)
        if function is None:
            reply = {
                "type": "reply",
                "call": call.call,
                "error": f"there is no exposed function {call.name!r}",
            }
        else:
            try:
                self._core.move(SandboxPhase.CALLING)
                value = yield AskOwner(function, call.args, call.kwargs)
                reply = {"type": "reply", "call": call.call, "value": value, "error": None}
                self._out = memoryview(protocol.frame(reply))
                self._deadline += time.monotonic() - began
                return
            except Exception as error:  # the owner's function failed: the agent learns that, not how
                reply = {
                    "type": "reply",
                    "call": call.call,
                    "error": f"{call.name} failed: {type(error).__name__}: {error}",
                }
            except BaseException:
                # Whoever waited has been cancelled. The code inside must not wait for good, and its next
                # request must not be taken for this answer.
                cancelled = {"type": "reply", "call": call.call, "error": "it was cancelled"}
                self._out = memoryview(protocol.frame(cancelled))
                with contextlib.suppress(OSError):
                    self._send()
                raise
            finally:
                if self._core.phase is SandboxPhase.CALLING:
                    self._core.move(SandboxPhase.BUSY)
        self._out = memoryview(protocol.frame(reply))
        self._deadline += time.monotonic() - began


_OUTCOMES_OF_EXCESS = {
    "memory": Outcome.OUT_OF_MEMORY,
    "processes": Outcome.OUT_OF_PROCESSES,
    "descriptors": Outcome.OUT_OF_MEMORY,
}
"""What it is called that a sandbox used too much; open descriptors stand for the memory of the kernel."""


def _outcome_of_loss(core: Core, talk: Talk) -> Outcome:
    if talk.overdue:
        return Outcome.TIMED_OUT
    if core.excess is not None:
        return _OUTCOMES_OF_EXCESS[core.excess.resource]
    if core.group is not None and core.group.oom_kills():
        return Outcome.OUT_OF_MEMORY
    return Outcome.CRASHED


def _why_lost(core: Core, talk: Talk) -> str:
    if core.excess is not None and not talk.overdue:
        return f"it was ended: {core.excess}"
    if core.group is not None and core.group.oom_kills() and not talk.overdue:
        limit = memory_limit(core.policy) / 2**20
        return f"it was ended by the kernel: the sandbox used more than {limit:.0f} MB of memory"
    return talk.why


def _result_of(core: Core, said: protocol.RunResult, *, timed_out: bool, elapsed_s: float) -> Result:
    """What was said, cut to what an interpreter of ours would say: the agent may have spoken in its place, or
    changed its clock."""
    outcome = _SAID_OUTCOMES.get(said.outcome, Outcome.ERROR)
    if timed_out:
        outcome = Outcome.TIMED_OUT
    elif core.interrupted and said.exception is not None and said.exception.type == "KeyboardInterrupt":
        outcome = Outcome.INTERRUPTED
    elif outcome is Outcome.OK and said.truncated:
        outcome = Outcome.OUTPUT_TRUNCATED
    if core.excess is not None and outcome in (Outcome.OK, Outcome.ERROR):
        outcome = _OUTCOMES_OF_EXCESS[core.excess.resource]
    limit = core.policy.output_bytes
    exception = said.exception
    failure = None
    if exception is not None:
        name, message = exception.type[:_VALUE_LIMIT], exception.message[:_VALUE_LIMIT]
        failure = Failure(name, message, exception.traceback[-_VALUE_LIMIT:])
    if core.excess is not None and failure is None:
        failure = Failure(outcome.name, str(core.excess), f"Processes were ended: {core.excess}")
    return Result(
        outcome=outcome,
        stdout=said.stdout[:limit],
        stderr=said.stderr[:limit],
        value=None if said.value is None else said.value[: _VALUE_LIMIT + len("...")],
        value_json=said.json if said.json is None or len(said.json) <= _VALUE_LIMIT else None,
        exit_status=said.exit_status,
        exception=failure,
        duration_s=max(0.0, min(said.duration_s, elapsed_s)),
        cpu_s=max(0.0, min(said.cpu_s, _MOST_CPU_S)),
        memory_bytes=said.memory_bytes,
        truncated=said.truncated,
        parsed=said.parsed,
    )
