"""The lines of a recording: one JSON object each, in the order in which things happened.

    {"kind":"recording", ...}   the first line: what was served, by which versions
    {"kind":"reset", ...}       an episode begins
    {"kind":"step", ...}        an action was taken
    {"kind":"tool", ...}        a tool was called through MCP
    {"kind":"fork", ...}        an episode begins as a copy of another one
    {"kind":"end", ...}         an episode is over, because of the next `reset` or the session's end
    {"kind":"lost", ...}        so many lines were not written, because the disk could not keep up

Sessions and episodes have numbers, which mean something within their file only. Fields that hold their
default are left out. This module reads and writes lines, and opens no file.
"""

import json
from typing import Any

import msgspec

from envtorch.errors import ConfigurationError
from envtorch.types import Scalar

__all__ = [
    "FORMAT",
    "End",
    "Fault",
    "Fork",
    "Header",
    "Line",
    "Lost",
    "Moment",
    "RecordedCall",
    "Reset",
    "Step",
    "ToolCall",
    "plain",
    "read_line",
    "write_line",
]

FORMAT = 1
"""The version of this format. A reader refuses one that it does not know."""


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    pass


class Header(_Line, tag="recording", frozen=True, kw_only=True, omit_defaults=True):
    """What was recorded: the first line of every file."""

    format: int = msgspec.field(default_factory=lambda: FORMAT)
    id: str
    """Random; `Episode.id` begins with it, so episodes of several files can be told apart."""
    environment: str
    started_at: float
    """Seconds since the epoch, as all times are that are called `at`."""
    versions: dict[str, str] = {}
    """Of Python, of EnvTorch, and of the package that the environment comes from."""
    action_schema: dict[str, Any] = {}
    observation_schema: dict[str, Any] = {}


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a call has no observation."""

    code: str
    """The error's wire code, or "ABORTED" for a call that was given up on while it ran."""
    message: str


class RecordedCall(_Line, frozen=True, kw_only=True, omit_defaults=True):
    """What `reset`, `step` and tool calls have in common: when they came, and what came of them."""

    session: int
    episode: int
    step: int
    """0 for the reset, then 1, 2, ...; a fork goes on counting where its parent stood."""
    at: float
    seconds: float
    """How long the environment took."""
    strict: bool = True
    """Whether options that the environment does not take would have been refused, not dropped."""
    wire: str = "json"
    observation: Any = None
    reward: Scalar | None = None
    done: bool = False
    terminated: bool | None = None
    truncated: bool | None = None
    metadata: Any = None
    error: Fault | None = None
    """Set where the call failed; there is no observation then."""
    redacted: bool = False
    """A secret was left out of what was given: the call cannot be made again from here."""

    @property
    def outcome(self) -> dict[str, Any]:
        """What came of it, without times: what a replay compares."""
        if self.error is not None:
            return {"error": {"code": self.error.code, "message": self.error.message}}
        told: dict[str, Any] = {"observation": self.observation, "reward": self.reward, "done": self.done}
        for name in ("terminated", "truncated", "metadata"):
            value = getattr(self, name)
            if value is not None:
                told[name] = value
        return told


class Reset(RecordedCall, tag="reset", frozen=True, kw_only=True, omit_defaults=True):
    """An episode begins. `options` are the keywords of `reset`, the seed among them."""

    options: dict[str, Any] = {}

    @property
    def given(self) -> Any:
        """What the caller sent."""
        return self.options


class Step(RecordedCall, tag="step", frozen=True, kw_only=True, omit_defaults=True):
    """An action was taken."""

    action: Any
    options: dict[str, Any] = {}

    @property
    def given(self) -> Any:
        """What the caller sent."""
        return self.action


class ToolCall(RecordedCall, tag="tool", frozen=True, kw_only=True, omit_defaults=True):
    """A tool was called; `observation` is its answer, in the `form` the caller asked for."""

    name: str
    arguments: dict[str, Any] = {}
    form: str = "value"
    """`value`: what the tool returned (OpenEnv's JSON-RPC); `mcp`: the result as MCP has it."""

    @property
    def given(self) -> Any:
        """What the caller sent."""
        return {"tool": self.name, "arguments": self.arguments}


class Fork(_Line, tag="fork", frozen=True, kw_only=True, omit_defaults=True):
    """A session of its own begins as a copy of another one, in the middle of its episode."""

    session: int
    episode: int
    parent_session: int
    parent_episode: int
    parent_step: int
    """The parent's last step that the copy shares."""
    at: float


class End(_Line, tag="end", frozen=True, kw_only=True, omit_defaults=True):
    """The episode is over. One without this line was cut short: the server was killed, or still runs."""

    episode: int
    at: float
    reason: str
    """`reset`: the next episode began; `closed`: the session ended."""


class Lost(_Line, tag="lost", frozen=True, kw_only=True, omit_defaults=True):
    """Lines that could not be written: these episodes have gaps."""

    count: int
    episodes: list[int]
    at: float


Moment = Reset | Step | ToolCall
"""A line that has an outcome: one stop for whoever steps through a recording."""

Line = Header | Reset | Step | ToolCall | Fork | End | Lost

_lines: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def write_line(line: Line) -> bytes:
    """A line, ending in a newline and holding no other. Arrays become lists, bytes become base64."""
    try:
        return _encoder.encode(line) + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which JSON's escapes can carry and UTF-8 cannot
        text = json.dumps(msgspec.to_builtins(line, enc_hook=_plain), ensure_ascii=False)
        return text.encode("utf-8", "replace") + b"\n"


def _plain(value: Any) -> Any:
    """Arrays, tensors and their scalars, of any library, all have `tolist`; raw JSON is read."""
    if isinstance(value, msgspec.Raw):
        return json.loads(bytes(value))
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise NotImplementedError(f"{type(value).__name__} has no place in a recording")
    return tolist()


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def plain(value: Any) -> Any:
    """A value as it would come back from a recording."""
    return msgspec.json.decode(_encoder.encode(value))


def read_line(text: bytes) -> Line:
    """The line in `text`. Raises `ConfigurationError` for one that is none."""
    try:
        line = _lines.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigurationError(f"this is no line of a recording: {error}") from error
    if isinstance(line, Header) and line.format != FORMAT:
        raise ConfigurationError(
            f"the recording has format {line.format}, and this EnvTorch reads {FORMAT}: "
            f"use the EnvTorch that wrote it ({line.versions.get('envtorch', 'unknown')}) or a newer one"
        )
    return line
