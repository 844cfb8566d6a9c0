"""What an episode was made of, so that it can be played again: its calls, and a digest of every answer."""

import hashlib
import secrets
from typing import Any, NamedTuple

from envtorch.errors import Cancelled, TimedOut
from envtorch.protocol.encoding import encode_value
from envtorch.protocol.formats import Format
from envtorch.protocol.wire import Answer, Ask

__all__ = ["EpisodeLog", "Played", "digest_of", "with_seed"]

CHANGING = frozenset(("reset", "step", "mcp"))
"""The calls that may change an environment; the others are not played again."""
DIGEST_BYTES = 16
SEEDS = 2**31
"""How many seeds there are to draw from: more than these do not fit in a number of 32 bits with a sign."""
KNOWN = frozenset(("observation", "reward", "done", "terminated", "truncated", "metadata"))
"""What a server says of a step."""


class Played(NamedTuple):
    """A call, and what was answered."""

    ask: Ask
    digest: bytes


def with_seed(options: bytes | None, format: Format) -> bytes:
    """The options of a reset, with a seed drawn here if they have none: played again, it is the same."""
    given: dict[str, Any] = format.read(options) if options else {}
    if options and given.get("seed") is not None:
        return options
    return encode_value({**given, "seed": secrets.randbelow(SEEDS)}, format)


class EpisodeLog:
    """The calls of one episode, from its reset on."""

    def __init__(self) -> None:
        self.plays: list[Played] = []
        self.unknown: str | None = None
        """Why the episode cannot be played again: nobody knows what a call has changed."""

    def copy(self) -> "EpisodeLog":
        log = EpisodeLog()
        log.plays, log.unknown = list(self.plays), self.unknown
        return log

    def note(self, ask: Ask, answer: Answer, format: Format) -> None:
        """A call was answered."""
        if ask.type not in CHANGING:
            return
        error = answer.error() if answer.type == "error" else None
        if isinstance(error, TimedOut | Cancelled):
            self.lose_track(ask)
            return
        if error is not None and error.details.get("usable") is False:
            self.lose_track(ask, "ended the environment")
            return
        if ask.type == "reset" and error is None:
            self.plays, self.unknown = [], None
        self.plays.append(Played(ask, digest_of(answer, format)))

    def lose_track(self, ask: Ask, why: str = "was not answered") -> None:
        """Nobody knows what a call has changed."""
        if ask.type in CHANGING:
            self.unknown = self.unknown or f"{ask.type} {self.step_of(len(self.plays))} {why}"

    def step_of(self, place: int) -> int:
        """The number of the step at a place in the log: the reset is 0."""
        begins_with_reset = bool(self.plays) and self.plays[0].ask.type == "reset"
        return place if begins_with_reset or not self.plays else place + 1


def digest_of(answer: Answer, format: Format) -> bytes:
    """Two answers that a caller cannot tell apart have the same digest."""
    if answer.type == "error":
        error = answer.error()
        said = f"{error.code}: {error.message}".encode()
    elif answer.type == "observation":
        said = format.write(_whole(answer.data))
    else:
        said = format.write(answer.data)
    return hashlib.blake2b(said, digest_size=DIGEST_BYTES, person=answer.type.encode()[:16]).digest()


def _whole(data: dict[str, Any]) -> list[Any]:
    """What an observation's reply says, told or not: several in one message say more than one alone."""
    done, is_truncated = bool(data.get("done")), bool(data.get("truncated"))
    is_terminated = data.get("terminated")
    if is_terminated is None:
        is_terminated = done and not is_truncated
    others = {name: data[name] for name in sorted(data.keys() - KNOWN)}
    told = [data.get("observation"), data.get("reward"), done, is_terminated, is_truncated]
    return [*told, data.get("metadata") or None, others]
