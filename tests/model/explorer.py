"""Breadth-first search through every state that a model can reach."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Counterexample", "Explored", "explore"]

S = TypeVar("S")


class Counterexample(NamedTuple, Generic[S]):
    """The shortest way to a state that breaks the promise."""

    wrong: str
    """What is wrong with the last state."""
    events: tuple[str, ...]
    """What happened, from the first state on."""
    state: S

    def __str__(self) -> str:
        lines = [f"{number:3}. {event}" for number, event in enumerate(self.events, 1)]
        return "\n".join([*lines, f"     => {self.wrong}"])


class Explored(NamedTuple, Generic[S]):
    """What the search found."""

    states: int
    depth: int
    """The number of events on the longest of the shortest ways to a state."""
    counterexample: Counterexample[S] | None


def explore(
    start: S,
    successors: Callable[[S], Iterable[tuple[str, S]]],
    wrong: Callable[[S, bool], str | None],
) -> Explored[S]:
    """Visit every state once, nearest first, and stop at the first that `wrong` has a sentence for.

    `wrong` is given the state, and whether it is final: nothing can happen in it any more.
    """
    origins: dict[S, tuple[str, S] | None] = {start: None}
    waiting = deque([(start, 0)])
    depth = 0
    while waiting:
        state, depth = waiting.popleft()
        following = list(successors(state))
        found = wrong(state, not following)
        if found is not None:
            return Explored(len(origins), depth, Counterexample(found, _way_to(state, origins), state))
        for event, after in following:
            if after not in origins:
                origins[after] = (event, state)
                waiting.append((after, depth + 1))
    return Explored(len(origins), depth, None)


def _way_to(state: S, origins: dict[S, tuple[str, S] | None]) -> tuple[str, ...]:
    events: list[str] = []
    while (origin := origins[state]) is not None:
        event, state = origin
        events.append(event)
    return tuple(reversed(events))
