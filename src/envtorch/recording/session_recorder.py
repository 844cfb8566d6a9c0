"""The recorder of one session: which episode it is in, and the lines that its calls become."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from envtorch.errors import EnvTorchError
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.formats import BY_NAME, JSON, Format
from envtorch.recording.format import End, Fault, RecordedCall, Reset, Step, ToolCall, write_line
from envtorch.recording.redaction import Redactor

__all__ = ["Given", "SessionRecorder", "Timing"]

logger = logging.getLogger(__name__)


class Timing(msgspec.Struct, frozen=True):
    """When a call began."""

    at: float
    clock: float

    @classmethod
    def now(cls) -> "Timing":
        return cls(time.time(), time.perf_counter())


class Given(msgspec.Struct, frozen=True):
    """What a caller sent, as bytes: nobody can change it any more."""

    data: bytes
    format: Format

    def read(self) -> Any:
        try:
            return self.format.read(self.data)
        except msgspec.DecodeError:  # half a surrogate pair, which Python's own reader lets pass
            return json.loads(self.data)


_NOTHING = Given(b"{}", JSON)


class RecordingStore(Protocol):
    """Writes the lines of all sessions to disk."""

    redactor: Redactor

    def next_episode(self) -> int: ...
    def put(self, episode: int, size: int, render: Any) -> None: ...
    def lose(self, episode: int) -> None: ...
    def require_disk(self) -> None: ...


class SessionRecorder:
    """One session's part of a recording. Its calls come one at a time, so nothing is locked."""

    def __init__(self, store: RecordingStore, session: int) -> None:
        self._store = store
        self.session = session
        self.episode: int | None = None
        self.step = 0
        self._timing = Timing.now()

    def refusal(self, call: Call) -> EnvTorchError | None:
        """Why a call must not be made: it has to be recorded, and cannot be."""
        if call.operation not in RECORDED:
            return None
        try:
            self._store.require_disk()
        except EnvTorchError as error:
            return error
        return None

    def begin(self) -> None:
        """A call begins. Calls come one at a time."""
        self._timing = Timing.now()

    def note(self, call: Call, came: "Came | None") -> None:
        """A call is over. None came of one that was given up while it ran. Never raises: a line that cannot
        be put is logged, and counted as lost."""
        try:
            self._note(call, came)
        except Exception:  # the call itself was made, and its caller waits for the answer
            logger.exception("the %s of session %d could not be recorded", call.operation, self.session)
            if self.episode is not None:
                self._store.lose(self.episode)

    def _note(self, call: Call, came: "Came | None") -> None:
        result = came if came is not None else Aborted()
        timing, strict = self._timing, call.strict
        match call.operation:
            case "reset":
                self.reset(_given(call), timing, result, strict=strict)
            case "step":
                self.stepped(_given(call), _arguments(call), timing, result, strict=strict)
            case "call_tool" | "tool_result":
                form = "value" if call.operation == "call_tool" else "mcp"
                self.called_tool(_arguments(call), timing, result, form=form)
            case "close":
                self.close()

    def reset(self, options: Given, timing: Timing, came: "Came", *, strict: bool) -> None:
        """An episode began, or failed to."""
        if self.episode is not None:
            self._end("reset")
        self.episode, self.step = self._store.next_episode(), 0
        common = self._common(timing, came, strict)
        self._put(Reset, common, came, [options], lambda: {"options": options.read()})

    def stepped(self, action: Given, options: Given, timing: Timing, came: "Came", *, strict: bool) -> None:
        """An action was taken, or failed to be."""
        common = self._counted(timing, came, strict)

        def read() -> dict[str, Any]:
            return {"action": action.read(), "options": options.read()}

        self._put(Step, common, came, [action, options], read)

    def called_tool(self, given: Given, timing: Timing, came: "Came", *, form: str) -> None:
        """A tool was called. Its name and its arguments were `given`, as a pair."""
        common = {**self._counted(timing, came, True), "form": form}

        def read() -> dict[str, Any]:
            name, arguments = given.read()
            return {"name": name, "arguments": arguments or {}}

        self._put(ToolCall, common, came, [given], read)

    def close(self) -> None:
        """The session is over."""
        if self.episode is not None:
            self._end("closed")
            self.episode = None

    def _end(self, reason: str) -> None:
        assert self.episode is not None
        line = End(episode=self.episode, at=round(time.time(), 6), reason=reason)
        self._store.put(self.episode, 100, lambda: write_line(line))

    def _counted(self, timing: Timing, came: "Came", strict: bool) -> dict[str, Any]:
        if self.episode is None:  # some environments may be stepped without a reset
            self.episode, self.step = self._store.next_episode(), 0
        self.step += 1
        return self._common(timing, came, strict)

    def _common(self, timing: Timing, came: "Came", strict: bool) -> dict[str, Any]:
        return {
            "session": self.session,
            "episode": self.episode,
            "step": self.step,
            "at": round(timing.at, 6),
            "seconds": round(time.perf_counter() - timing.clock, 6),
            "strict": strict,
            "wire": came.format if isinstance(came, Encoded) else "json",
        }

    def _put(
        self,
        kind: type[RecordedCall],
        common: dict[str, Any],
        came: "Came",
        given: Sequence[Given],
        read: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Have a line written; `read` gives its fields from what was `given`, on the writer's thread."""
        redactor = self._store.redactor

        def render() -> bytes:
            cleaned = {name: redactor.clean(value) for name, value in read().items()}
            values = {name: value for name, (value, _) in cleaned.items()}
            redacted = any(hit for _, hit in cleaned.values())
            return write_line(kind(**common, **values, **_told(came), redacted=redacted))  # type: ignore[arg-type]

        size = sum(len(value.data) for value in given) + _size(came)
        self._store.put(common["episode"], size, render)


class Aborted(Exception):
    """A call was given up while it ran."""


RECORDED = frozenset({"reset", "step", "call_tool", "tool_result"})
"""What is recorded: the operations that change an episode."""


def _given(call: Call) -> Given:
    return Given(call.data, BY_NAME[call.format]) if call.data else _NOTHING


def _arguments(call: Call) -> Given:
    return Given(call.arguments, JSON) if call.arguments else _NOTHING


Came = Encoded | bytes | BaseException
"""What a call came to: an observation, a tool's answer, or why there is none."""


def _told(came: Came) -> dict[str, Any]:
    """The fields of a line that say what came of a call."""
    if isinstance(came, Encoded):
        return {
            "observation": _value(came.observation, BY_NAME[came.format]),
            "reward": came.reward,
            "done": came.done,
            "terminated": came.terminated,
            "truncated": came.truncated,
            "metadata": None if came.metadata is None else _value(came.metadata, BY_NAME[came.format]),
        }
    if isinstance(came, bytes):
        return {"observation": msgspec.Raw(came)}
    if isinstance(came, EnvTorchError):
        return {"error": Fault(code=came.code or type(came).__name__, message=came.message)}
    return {"error": Fault(code="ABORTED", message="the call was given up on while it ran")}


def _value(data: bytes, format: Format) -> Any:
    """JSON as it was sent, without reading it; anything else as JSON has it."""
    return msgspec.Raw(data) if format is JSON else format.read(data)


def _size(came: Came) -> int:
    if isinstance(came, Encoded):
        return len(came.observation) + len(came.metadata or b"")
    return len(came) if isinstance(came, bytes) else 200
