"""A call of an environment, as a value.

A call is what travels from a session to wherever its environment lives: the event loop, a thread or another
process. Its payload stays encoded until it is there.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.messages import write_json

__all__ = ["STEPPING", "Call", "Perform", "read_arguments"]

STEPPING = frozenset({"step", "call_tool", "tool_result"})
"""The operations that take a step in an episode."""


class Call(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One call of an environment.

    | operation | `data` | `arguments` | result |
    |---|---|---|---|
    | `reset` | keywords | | `Encoded` |
    | `step` | the action | keywords | `Encoded` |
    | `state` | | | the state |
    | `list_tools` | | | a JSON array |
    | `call_tool`, `tool_result` | | name, arguments | JSON |
    | `tasks` | | method, arguments | JSON |
    | `metadata`, `state_schema` | | | a JSON object |
    | `fork` | | count | environments |
    | `close` | | | nothing |
    """

    operation: str
    data: bytes = b""
    """In `format`, as the client sent it."""
    format: str = JSON.name
    strict: bool = False
    """Whether a keyword that the environment does not take, and a reward that is not finite, is an error;
    OpenEnv drops both."""
    arguments: bytes = b""
    """In JSON."""

    @classmethod
    def with_arguments(cls, operation: str, *arguments: Any) -> "Call":
        """A call that takes positional arguments."""
        return cls(operation, arguments=write_json(list(arguments)))

    @classmethod
    def step(
        cls, action: bytes, format: Format = JSON, *, strict: bool = False, keywords: Mapping[str, Any] = {}
    ) -> "Call":
        written = write_json(dict(keywords)) if keywords else b""
        return cls("step", action, format.name, strict, written)

    @classmethod
    def reset(cls, keywords: Mapping[str, Any] = {}, *, strict: bool = False) -> "Call":
        return cls("reset", write_json(dict(keywords)) if keywords else b"", strict=strict)


class Perform(Call, frozen=True):
    """A call of a function of this process, in the environment's turn and where it lives.

    It cannot travel to another process.
    """

    function: Callable[[Any], Any] = lambda environment: None
    """Called with the environment."""


def read_arguments(call: Call) -> Any:
    """The arguments of a call; an empty mapping where there are none."""
    return JSON.read(call.arguments) if call.arguments else {}
