"""What the sessions of a vector answered, together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from envtorch.errors import EnvTorchError
from envtorch.protocol.batch import column_of
from envtorch.types import ObsT, Scalar, StepResult

__all__ = ["VectorResult"]


@dataclass(slots=True)
class VectorResult(Generic[ObsT]):
    """The results of all sessions, as columns; `result[i]` is one of them as a `StepResult`.

    A session whose call failed has its error in `errors`, None for its observation, and a reward of zero: one
    failure does not lose the others. Observations are read when they are first looked at.
    """

    rewards: list[Scalar | None]
    dones: list[bool]
    terminated: list[bool]
    truncated: list[bool]
    metadata: list[dict[str, Any] | None]
    errors: dict[int, EnvTorchError]
    final: dict[int, StepResult[ObsT]] = field(default_factory=dict)
    """With autoreset "same_step": how the episodes ended that were begun anew in the same call."""
    _read: Callable[[], Sequence[ObsT]] = field(default=list, repr=False)
    _columns: Callable[[], Mapping[str, Any]] = field(default=dict, repr=False)
    _observations: Sequence[ObsT] | None = field(default=None, repr=False)

    @property
    def observations(self) -> Sequence[ObsT]:
        if self._observations is None:
            self._observations = self._read()
        return self._observations

    def column(self, name: str) -> Any:
        """One field of all observations: the list or array that came, or one made of the observations.

        Where values are plain, of environments that step together, and on the MessagePack wire, this makes
        no observation.
        """
        columns = self._columns()
        return columns[name] if name in columns else [_field(one, name) for one in self.observations]

    def array(self, name: str) -> Any:
        """One field of all observations as an array, the session first.

        On the MessagePack wire, arrays of one shape are not copied on the way: this is a view of the frame.
        """
        import numpy

        column = self.column(name)
        return numpy.asarray(column_of(column) if isinstance(column, list) else column)

    def __getitem__(self, index: int) -> StepResult[ObsT]:
        """One session's result. Raises its error, if that is what it has."""
        if index in self.errors:
            raise self.errors[index]
        return StepResult(
            self.observations[index],
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
