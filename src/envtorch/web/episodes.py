"""What a visitor saw: values, with no session behind them. Live episodes and recordings both become these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["EpisodeEntry", "Track", "folded", "total_reward"]

_FOLD_BEYOND = 64


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """One call and its answer."""

    call: Literal["reset", "step"]
    sent: Mapping[str, Any]
    """The options of a reset, the action of a step. Secrets are masked."""
    observation: Mapping[str, Any] = field(default_factory=dict)
    reward: float | None = None
    done: bool = False
    seconds: float | None = None
    error: str | None = None
    """Why the call failed, if it did; the observation is then the one before."""

    @property
    def payload(self) -> dict[str, Any]:
        """The answer, as the wire tells it."""
        return {"observation": dict(self.observation), "reward": self.reward, "done": self.done}


@dataclass(frozen=True, slots=True)
class Track:
    """A named line of entries: one branch of an episode."""

    name: str
    entries: Sequence[EpisodeEntry]

    @property
    def steps(self) -> int:
        return sum(entry.call == "step" for entry in self.entries)


def total_reward(entries: Sequence[EpisodeEntry]) -> float:
    """What an episode has earned so far."""
    return float(sum(entry.reward or 0.0 for entry in entries if entry.call == "step"))


def folded(value: Any) -> Any:
    """A value to look at: an array of more than 64 numbers is shown as its shape, floats are rounded."""
    if isinstance(value, Mapping):
        return {key: folded(item) for key, item in value.items()}
    if isinstance(value, float):
        return round(value, 6)
    if not isinstance(value, list | tuple):
        return value
    shape = _shape(value)
    if shape is not None:
        return f"array of {' × '.join(map(str, shape))} numbers"
    return [folded(item) for item in value]


def _shape(value: Sequence[Any]) -> list[int] | None:
    """The shape of a large array of numbers; None for anything else."""
    shape: list[int] = []
    first: Any = value
    size = 1
    while isinstance(first, list | tuple) and first:
        shape.append(len(first))
        size *= len(first)
        first = first[0]
    is_number = isinstance(first, int | float) and not isinstance(first, bool)
    return shape if is_number and size > _FOLD_BEYOND else None
