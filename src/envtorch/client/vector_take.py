"""Putting together what the sessions of a vector answer, in whatever pieces it comes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic

from envtorch.client.hooks import Hooks
from envtorch.client.vector_results import VectorResult
from envtorch.errors import EnvTorchError
from envtorch.protocol.batch import Columns
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.vector import Arrived
from envtorch.types import ObsT, StepResult

__all__ = ["Collector"]


class Collector(Generic[ObsT]):
    """Takes what arrives and gives one result, or one session's."""

    def __init__(self, hooks: Hooks[Any, ObsT, Any], format: Format, count: int) -> None:
        self._hooks, self._format, self._count = hooks, format, count
        self._whole: Columns | None = None
        """All sessions' columns, in order, when they came in one piece: the usual case, and the short one."""
        self._results: dict[int, StepResult[ObsT]] = {}
        self._errors: dict[int, EnvTorchError] = {}
        self.fresh: list[int] = []
        """The sessions that have answered since the last look."""

    def take(self, arrived: Sequence[Arrived]) -> None:
        for one in arrived:
            self.fresh.extend(one.channels)
            self._take(one)

    def _take(self, arrived: Arrived) -> None:
        columns = arrived.columns
        if columns is not None and columns.ch == list(range(self._count)):
            self._whole = columns
        elif columns is not None:
            self._results.update(zip(columns.ch, self._split(columns), strict=True))
        elif arrived.error is not None:
            self._errors[arrived.channels[0]] = arrived.error
        else:
            assert arrived.payload is not None
            payload = self._format.read(bytes(arrived.payload))
            self._results[arrived.channels[0]] = self._hooks.parse_result(payload)

    def taken_fresh(self) -> list[int]:
        fresh, self.fresh = self.fresh, []
        return fresh

    def one(self, place: int) -> StepResult[ObsT] | EnvTorchError:
        """One session's result or error."""
        if self._whole is not None:
            self._results.update(enumerate(self._split(self._whole)))
            self._whole = None
        return self._errors[place] if place in self._errors else self._results[place]

    def result(self) -> VectorResult[ObsT]:
        """Everything that came, as columns."""
        if self._whole is not None:
            return self._of_columns(self._whole)
        rows = [self._results.get(place) for place in range(self._count)]
        return VectorResult(
            rewards=[row.reward if row else 0.0 for row in rows],
            dones=[row.done if row else False for row in rows],
            terminated=[bool(row and row.terminated) for row in rows],
            truncated=[bool(row and row.truncated) for row in rows],
            metadata=[row.metadata if row else None for row in rows],
            errors=self._errors,
            _observations=[row.observation if row else None for row in rows],  # type: ignore[misc]
        )

    def _of_columns(self, columns: Columns) -> VectorResult[ObsT]:
        truncated = columns.truncated or [False] * len(columns.done)
        ended = columns.terminated or [d and not t for d, t in zip(columns.done, truncated, strict=True)]
        fields = self._fields(columns)
        return VectorResult(
            rewards=columns.reward,
            dones=columns.done,
            terminated=ended,
            truncated=truncated,
            metadata=columns.metadata or [None] * len(columns.done),
            errors={},
            _read=lambda: self._observations(columns, fields),
            _arrays={name: column for name, column in fields.items() if hasattr(column, "ndim")},
        )

    def _fields(self, columns: Columns) -> Mapping[str, Any]:
        raw = bytes(columns.fields)
        fields: Mapping[str, Any] = self._format.read(raw) if raw else {}
        return fields

    def _observations(self, columns: Columns, fields: Mapping[str, Any]) -> Sequence[ObsT]:
        if self._format is JSON:
            read = self._hooks.parse_observations(bytes(columns.observation), columns.reward, columns.done)
            if read is not None:
                return read
        return [result.observation for result in self._split(columns, fields)]

    def _split(self, columns: Columns, fields: Mapping[str, Any] | None = None) -> list[StepResult[ObsT]]:
        """One result for each session of the columns."""
        fields = self._fields(columns) if fields is None else fields
        count = range(len(columns.ch))
        if fields:
            rows = [{name: column[i] for name, column in fields.items()} for i in count]
        else:
            rows = self._format.read(bytes(columns.observation))
        beside = {
            name: column
            for name in ("reward", "done", "metadata", "terminated", "truncated")
            if (column := getattr(columns, name)) is not None
        }
        return [
            self._hooks.parse_result(
                {"observation": rows[i]} | {name: column[i] for name, column in beside.items()}
            )
            for i in count
        ]

    @staticmethod
    def merged(
        ended: VectorResult[ObsT], begun: VectorResult[ObsT], final: dict[int, StepResult[ObsT]]
    ) -> VectorResult[ObsT]:
        """Results in which the episodes that ended have begun anew."""
        observations = list(ended.observations)
        for place in final:
            observations[place] = begun.observations[place]
        errors = ended.errors | begun.errors
        return replace(ended, errors=errors, final=final, _observations=observations, _arrays={})
