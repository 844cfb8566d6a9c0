"""Rubrics made of rubrics."""

import math
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any, NoReturn

from envtorch.rubrics.base import Rubric, Scoring, concurrently, run

__all__ = ["Gate", "RubricDict", "RubricList", "Sequential", "WeightedSum"]


class _Ordered(Rubric):
    """Children in a row, named `rubric_0`, `rubric_1`, ... for their paths."""

    def __init__(self, rubrics: Iterable[Rubric] = ()) -> None:
        super().__init__()
        for rubric in rubrics:
            self._add(rubric)

    def _add(self, rubric: Rubric) -> None:
        setattr(self, f"rubric_{len(self)}", rubric)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Rubric:
        return list(self._parts.values())[index]

    def __iter__(self) -> Iterator[Rubric]:
        return iter(self._parts.values())


class Sequential(_Ordered):
    """One after the other: the last score, or zero as soon as one is zero. Empty, it gives one."""

    def __init__(self, *rubrics: Rubric) -> None:
        super().__init__(rubrics)

    def forward(self, action: Any, observation: Any) -> Any:
        return run(self._in_turn(action, observation))

    def _in_turn(self, action: Any, observation: Any) -> Scoring:
        score: Any = 1.0
        for rubric in self:
            score = yield rubric(action, observation)
            if score == 0:
                return 0.0
        return score


class Gate(Rubric):
    """Another rubric's score, or zero below the threshold. A score that is not a number stays one."""

    def __init__(self, rubric: Rubric, threshold: float = 1.0) -> None:
        super().__init__()
        self.rubric = rubric
        self.threshold = threshold

    def forward(self, action: Any, observation: Any) -> Any:
        return run(self._gated(action, observation))

    def _gated(self, action: Any, observation: Any) -> Scoring:
        score = yield self.rubric(action, observation)
        return 0.0 if score < self.threshold else score


class WeightedSum(_Ordered):
    """Scores added up by weight; the weights add up to one. Async children run at the same time."""

    def __init__(self, rubrics: Sequence[Rubric], weights: Sequence[float]) -> None:
        if len(rubrics) != len(weights):
            raise ValueError(f"{len(rubrics)} rubrics and {len(weights)} weights: their numbers must match")
        if not math.isclose(sum(weights), 1.0, abs_tol=1e-6):
            raise ValueError(f"the weights must sum to 1.0, and sum to {sum(weights)}")
        super().__init__(rubrics)
        self._weights = tuple(weights)

    @property
    def weights(self) -> list[float]:
        return list(self._weights)

    def forward(self, action: Any, observation: Any) -> Any:
        return run(self._added_up(action, observation))

    def _added_up(self, action: Any, observation: Any) -> Scoring:
        scores = yield concurrently([rubric(action, observation) for rubric in self])
        return sum(score * weight for score, weight in zip(scores, self._weights, strict=True))


class RubricList(_Ordered):
    """Rubrics kept by position, for a parent that decides which of them to use."""

    def forward(self, action: Any, observation: Any) -> NoReturn:
        raise NotImplementedError("a RubricList does not score: call the rubrics in it")

    def append(self, rubric: Rubric) -> None:
        self._add(rubric)

    def extend(self, rubrics: Iterable[Rubric]) -> None:
        for rubric in rubrics:
            self._add(rubric)


class RubricDict(Rubric):
    """Rubrics kept by name, for a parent that decides which of them to use: one per game, say."""

    def __init__(self, rubrics: Mapping[str, Rubric] | None = None) -> None:
        super().__init__()
        self.update(rubrics or {})

    def forward(self, action: Any, observation: Any) -> NoReturn:
        raise NotImplementedError("a RubricDict does not score: call the rubrics in it")

    def update(self, rubrics: Mapping[str, Rubric]) -> None:
        for name, rubric in rubrics.items():
            self[name] = rubric

    def __setitem__(self, name: str, rubric: Rubric) -> None:
        self._parts[name] = rubric

    def __getitem__(self, name: str) -> Rubric:
        return self._parts[name]

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def keys(self) -> KeysView[str]:
        return self._parts.keys()

    def values(self) -> ValuesView[Rubric]:
        return self._parts.values()

    def items(self) -> ItemsView[str, Rubric]:
        return self._parts.items()
