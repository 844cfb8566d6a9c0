"""The recorder of one session: which episode it is in, and the lines that its calls become."""

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from envtorch.errors import EnvTorchError
from envtorch.protocol.calls import Call, read_arguments
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.formats import BY_NAME, JSON, MSGPACK, Format
from envtorch.recording.format import End, Fault, RecordedCall, Reset, Step, ToolCall, write_line
from envtorch.recording.redaction import Redactor

__all__ = ["Given", "SessionRecorder", "Timing"]


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

    @classmethod
    def of(cls, value: bytes | Mapping[str, Any], format: Format = JSON) -> "Given":
        if isinstance(value, bytes):
            return cls(value, format)
        return cls(MSGPACK.write(dict(value)), MSGPACK) if value else _NOTHING

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
        """A call is over. None came of one that was given up while it ran."""
        result = came if came is not None else Aborted()
        timing, strict = self._timing, call.strict
        match call.operation:
            case "reset":
                self.reset(_given(call), timing, result, strict=strict)
            case "step":
                options = Given(call.arguments, JSON) if call.arguments else _NOTHING
                self.stepped(_given(call), options, timing, result, strict=strict)
            case "call_tool" | "tool_result":
                name, arguments = read_arguments(call)
                form = "value" if call.operation == "call_tool" else "mcp"
                self.called_tool(name, Given.of(arguments), timing, result, form=form)
            case "close":
                self.close()

    def reset(self, options: Given, timing: Timing, came: "Came", *, strict: bool) -> None:
        """An episode began, or failed to."""
        if self.episode is not None:
            self._end("reset")
        self.episode, self.step = self._store.next_episode(), 0
        common = self._common(timing, came, strict)
        self._put(Reset, common, came, options=options)

    def stepped(self, action: Given, options: Given, timing: Timing, came: "Came", *, strict: bool) -> None:
        """An action was taken, or failed to be."""
        common = self._counted(timing, came, strict)
        self._put(Step, common, came, action=action, options=options)

    def called_tool(self, name: str, arguments: Given, timing: Timing, came: "Came", *, form: str) -> None:
        """A tool was called."""
        common = {**self._counted(timing, came, True), "name": name, "form": form}
        self._put(ToolCall, common, came, arguments=arguments)

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

    def _put(self, kind: type[RecordedCall], common: dict[str, Any], came: "Came", **given: Given) -> None:
        redactor = self._store.redactor

        def render() -> bytes:
            cleaned = {name: redactor.clean(value.read()) for name, value in given.items()}
            values = {name: value for name, (value, _) in cleaned.items()}
            redacted = any(hit for _, hit in cleaned.values())
            return write_line(kind(**common, **values, **_told(came), redacted=redacted))  # type: ignore[arg-type]

        size = sum(len(value.data) for value in given.values()) + _size(came)
        self._store.put(common["episode"], size, render)


class Aborted(Exception):
    """A call was given up while it ran."""


RECORDED = frozenset({"reset", "step", "call_tool", "tool_result"})
"""What is recorded: the operations that change an episode."""


def _given(call: Call) -> Given:
    return Given(call.data, BY_NAME[call.format]) if call.data else _NOTHING


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
