"""What happens in a tree of agents, as values: what a trajectory is made of, and what a view shows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import msgspec

from envtorch.envs.repl_env.language_models import Request

__all__ = [
    "Asked",
    "Began",
    "Ended",
    "Event",
    "Forked",
    "Observer",
    "Ran",
    "ignore",
    "read_event",
    "write_event",
]


_FIRST_TURN = 2
"""Messages that an agent's first turn has."""


class Happened(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    """Something that an agent did; `node` is "0" for the root, "0.1" for its first child."""

    node: str


class Began(Happened, frozen=True, tag="began"):
    """An agent has a task."""

    task: str
    context_length: int = 0
    context_hash: str = ""
    inherited: bool = False
    """It began as a fork of its parent."""


class Asked(Happened, frozen=True, tag="asked"):
    """A language model was asked: for the agent's next turn, or by its code."""

    number: int
    messages: Sequence[Mapping[str, str]]
    answer: str | None = None
    model: str | None = None
    error: str | None = None
    turn: bool = False

    @classmethod
    def of(
        cls, request: Request, answer: str | None, *, error: str | None = None, turn: bool = False
    ) -> Self:
        # What came before the last message of a later turn is in the agent's earlier events.
        messages = request.messages[-1:] if turn and len(request.messages) > _FIRST_TURN else request.messages
        return cls(request.node, request.number, messages, answer, request.model, error, turn)


class Ran(Happened, frozen=True, tag="ran"):
    """A block of the agent's code was run."""

    code: str
    stdout: str = ""
    stderr: str = ""
    success: bool = True
    execution_time: float = 0.0
    final: str | None = None


class Forked(Happened, frozen=True, tag="forked"):
    """Children were made: forks of the agent's interpreter, or fresh ones."""

    children: Sequence[str]
    how: Literal["fork", "fresh"] = "fork"
    seconds: float = 0.0


class Ended(Happened, frozen=True, tag="ended"):
    """The agent has its answer, or will have none."""

    answer: str | None = None
    reason: str = "answered"
    usage: Mapping[str, Any] = {}


Event = Began | Asked | Ran | Forked | Ended
Observer = Callable[[Event], None]

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


def ignore(event: Event) -> None:
    """For those who watch nothing."""


def write_event(event: Event) -> bytes:
    """One line of a trajectory, without its end."""
    return _encoder.encode(event)


def read_event(line: bytes | str) -> Event:
    """The event of one line. Raises `msgspec.DecodeError`."""
    return _decoder.decode(line)
