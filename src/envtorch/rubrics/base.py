"""`Rubric`: a score for one action and what came of it, with named parts that can be looked into.

A rubric whose `forward` is a plain method gives its score at once; one whose `forward` is `async`, or
that has an `async` part anywhere below it, gives something to await. Either way the result may be
awaited, so whoever does not know the colour of a rubric awaits it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["Rubric", "Score", "concurrently", "run"]

Scoring = Generator[Any, Any, Any]
PreHook = Callable[["Rubric", Any, Any], Any]
Hook = Callable[["Rubric", Any, Any, Any], Any]


class Score(float):
    """A number that may also be awaited, for callers who cannot know whether they have to."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, float]:
        yield from ()
        return float(self)


class Rubric(ABC):
    """Scores an action and its observation. Subclass it and write `forward`.

    A rubric assigned to an attribute becomes a named child: `named_rubrics` finds it, `get_rubric`
    reaches it by its path, and `reset`, `state_dict` and `load_state_dict` go down to it.
    """

    last_score: Any = None
    """What the last call gave; None before the first."""

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, action: Any, observation: Any) -> Any:
        """The score; plain or `async`."""

    def __call__(self, action: Any, observation: Any) -> Any:
        """The score, with the hooks around it."""
        return run(self._scoring(action, observation))

    def _scoring(self, action: Any, observation: Any) -> Scoring:
        for before in list(self._pre_hooks):
            yield before(self, action, observation)
        score = yield self.forward(action, observation)
        self.last_score = float(score) if isinstance(score, Score) else score
        for after in list(self._hooks):
            yield after(self, action, observation, self.last_score)
        return score

    # Hooks.

    @property
    def _pre_hooks(self) -> list[PreHook]:
        hooks: list[PreHook] = self.__dict__.setdefault("_own_pre_hooks", [])
        return hooks

    @property
    def _hooks(self) -> list[Hook]:
        hooks: list[Hook] = self.__dict__.setdefault("_own_hooks", [])
        return hooks

    def register_forward_pre_hook(self, hook: PreHook) -> None:
        """Call `hook(rubric, action, observation)` before each scoring."""
        self._pre_hooks.append(hook)

    def register_forward_hook(self, hook: Hook) -> None:
        """Call `hook(rubric, action, observation, score)` after each scoring."""
        self._hooks.append(hook)

    # Children. Kept in the instance's own dictionary, so that a subclass which does not call
    # `super().__init__()` still has them.

    @property
    def _parts(self) -> dict[str, "Rubric"]:
        parts: dict[str, Rubric] = self.__dict__.setdefault("_own_parts", {})
        return parts

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Rubric):
            self._parts[name] = value
        else:
            self._parts.pop(name, None)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._parts.pop(name, None)
        super().__delattr__(name)

    def children(self) -> Iterator["Rubric"]:
        """The rubrics directly below this one."""
        yield from self._parts.values()

    def named_children(self) -> Iterator[tuple[str, "Rubric"]]:
        """The rubrics directly below this one, with their names."""
        yield from self._parts.items()

    def rubrics(self) -> Iterator["Rubric"]:
        """Every rubric below this one."""
        for _, rubric in self.named_rubrics():
            yield rubric

    def named_rubrics(self, prefix: str = "") -> Iterator[tuple[str, "Rubric"]]:
        """Every rubric below this one, each with its path: `"style.length"`."""
        for name, child in self._parts.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path, child
            yield from child.named_rubrics(path)

    def get_rubric(self, path: str) -> "Rubric":
        """The rubric at a path; the empty path is this one. Raises `KeyError`."""
        found = self
        for name in path.split(".") if path else ():
            if name not in found._parts:
                raise KeyError(f"there is no rubric at {path!r}: {name!r} is not a child")
            found = found._parts[name]
        return found

    # Episodes, and what is kept between runs.

    def reset(self) -> None:
        """Forget the episode. A rubric that keeps something overrides this, and calls `super().reset()`."""
        for child in self._parts.values():
            child.reset()

    def state_dict(self) -> dict[str, Any]:
        """What this rubric would need to be set up again: its options, and its children's by name."""
        states = ((name, child.state_dict()) for name, child in self._parts.items())
        return {name: state for name, state in states if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        for name, child in self._parts.items():
            if name in state:
                child.load_state_dict(state[name])


def run(scoring: Scoring) -> Any:
    """What a flow of scores comes to: a `Score` if nothing in it has to be awaited, else a coroutine."""
    try:
        wanted = next(scoring)
        while not isinstance(wanted, Awaitable) or isinstance(wanted, Score):
            wanted = scoring.send(wanted)
    except StopIteration as stop:
        return _scored(stop.value)
    return _go_on(scoring, wanted)


async def _go_on(scoring: Scoring, wanted: Any) -> Any:
    """`run`, from the first thing that has to be awaited."""
    try:
        while True:
            try:
                got = await wanted if isinstance(wanted, Awaitable) else wanted
            except BaseException as error:
                wanted = scoring.throw(error)
            else:
                wanted = scoring.send(got)
    except StopIteration as stop:
        return _plain(stop.value)


def _scored(value: Any) -> Any:
    return Score(value) if isinstance(value, int | float) else value


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Score) else value


def concurrently(scores: Sequence[Any]) -> Any:
    """Several scores at once: a list, or a coroutine of one when any of them has to be awaited."""
    if all(isinstance(score, Score) or not isinstance(score, Awaitable) for score in scores):
        return [_plain(score) for score in scores]
    return _gather(scores)


async def _gather(scores: Sequence[Any]) -> list[Any]:
    return list(await asyncio.gather(*(_settle(score) for score in scores)))


async def _settle(score: Any) -> Any:
    return await score if isinstance(score, Awaitable) else score
