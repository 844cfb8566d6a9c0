"""What the sessions of a vector answered, together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from envtorch.errors import EnvTorchError
from envtorch.protocol.batch import column_of
from envtorch.types import ObsT, Scalar, StepResult

__all__ = ["Outcome", "VectorResult"]

Outcome = StepResult[ObsT] | EnvTorchError
"""What came of one session's call."""


@dataclass(slots=True)
class VectorResult(Generic[ObsT]):
    """The results of all sessions, as columns; `result[i]` is one of them as a `StepResult`.

    A session whose call failed has its error in `errors`, and None for its observation and its reward;
    nothing is said about its episode, so `dones`, `terminated` and `truncated` are False. The other sessions'
    results are what they are. `ok` is the mask of the sessions that answered.

    Observations are decoded when they are first accessed. One that does not fit its class (on the JSON wire
    also one with an infinite number in it, which arrives as null) is then None, and has an error in `errors`.
    """

    rewards: list[Scalar | None]
    dones: list[bool]
    terminated: list[bool]
    truncated: list[bool]
    metadata: list[dict[str, Any] | None]
    errors: dict[int, EnvTorchError]
    final: dict[int, StepResult[ObsT]] = field(default_factory=dict)
    """With autoreset "same_step": how the episodes ended that were reset in the same call."""
    _read: Callable[[], Sequence[ObsT]] = field(default=list, repr=False)
    _columns: Callable[[], Mapping[str, Any]] = field(default=dict, repr=False)
    _observations: Sequence[ObsT] | None = field(default=None, repr=False)

    @property
    def ok(self) -> list[bool]:
        """For each session, whether it answered: False where `errors` has why not."""
        return [place not in self.errors for place in range(len(self))]

    @property
    def observations(self) -> Sequence[ObsT]:
        if self._observations is None:
            self._observations = self._read()
        return self._observations

    def column(self, name: str) -> Any:
        """One field of all observations, as the list or array that arrived, or as a list made of
        observations; None for a session that failed.

        Where values are plain, of environments that step together, and on the MessagePack wire, no
        observation object is made for it.
        """
        columns = self._columns()
        if name in columns and not self.errors:
            return columns[name]
        return [
            None if place in self.errors else _field(one, name) for place, one in enumerate(self.observations)
        ]

    def array(self, name: str) -> Any:
        """One field of all observations, or `"reward"`, as an array, the session first.

        A session that failed, or has no reward, has NaN where the values are floating-point numbers and zero
        where they are anything else; `ok` says which rows are real. On the MessagePack wire, arrays of one
        shape are not copied on the way: this is a view of the frame.
        """
        import numpy

        column = self.rewards if name == "reward" else self.column(name)
        if not isinstance(column, list):
            return numpy.asarray(column)
        known = [place for place, value in enumerate(column) if value is not None]
        if len(known) == len(column):
            return numpy.asarray(column_of(column))
        return _spread(column, known, is_reward=name == "reward")

    def __getitem__(self, index: int) -> StepResult[ObsT]:
        """One session's result. Raises its error, if that is what it has."""
        observation = self.observations[index]
        if index in self.errors:
            raise self.errors[index]
        return StepResult(
            observation,
            self.rewards[index],
            self.dones[index],
            self.metadata[index],
            self.terminated[index],
            self.truncated[index],
        )

    def __len__(self) -> int:
        return len(self.dones)

    def __iter__(self) -> Iterator[StepResult[ObsT]]:
        return (self[index] for index in range(len(self)))


def _field(observation: Any, name: str) -> Any:
    return observation[name] if isinstance(observation, Mapping) else getattr(observation, name)


def _spread(column: list[Any], known: list[int], *, is_reward: bool) -> Any:
    """An array with the known values in their places."""
    import numpy

    values = numpy.asarray(column_of([column[place] for place in known])) if known else numpy.zeros(0)
    kind = numpy.result_type(values.dtype, numpy.float64) if is_reward else values.dtype
    fill = numpy.nan if kind.kind in "fc" else 0
    whole = numpy.full((len(column), *values.shape[1:]), fill, dtype=kind)
    whole[known] = values
    return whole
