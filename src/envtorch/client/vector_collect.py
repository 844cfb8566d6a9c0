"""Puts together what the sessions of a vector answer, in whatever pieces it arrives."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Generic

from envtorch.client.translation import Translation
from envtorch.client.vector_results import Outcome, VectorResult
from envtorch.errors import EnvTorchError, ProtocolError
from envtorch.protocol.batch import Columns, payloads_of
from envtorch.protocol.channel import Arrived
from envtorch.protocol.columns import as_lists, is_array
from envtorch.protocol.formats import JSON, READ_ERRORS, Format
from envtorch.types import ObsT, Scalar, StepResult

__all__ = ["Collector", "DecodingHints"]


@dataclass
class DecodingHints:
    """What the caller accesses, which can be decoded while the server is still at work."""

    observations: bool = False


class Piece(Generic[ObsT]):
    """What some sessions answered together. It is decoded when it is first accessed."""

    def __init__(self, columns: Columns, translation: Translation[Any, ObsT, Any], format: Format) -> None:
        self._columns, self._translation, self._format = columns, translation, format
        self.channels = columns.ch
        self.rewards: list[Scalar | None] = columns.reward
        self.dones = columns.done

    @cached_property
    def fields(self) -> Mapping[str, Any]:
        """Columns of the observations, where they came as such."""
        raw = bytes(self._columns.fields)
        try:
            fields: Mapping[str, Any] = self._format.read(raw) if raw else {}
        except READ_ERRORS as error:
            raise ProtocolError(f"the reply cannot be read: {error}") from error
        return fields

    @cached_property
    def observations(self) -> Sequence[ObsT]:
        read = self._all_at_once
        return read if read is not None else [result.observation for result in self._one_by_one()]

    @cached_property
    def _all_at_once(self) -> Sequence[ObsT] | None:
        if self.fields:
            return self._translation.parse_fields(self.fields, self.rewards, self.dones)
        raw = bytes(self._columns.observation)
        if self._format is not JSON or not raw:
            return None
        return self._translation.parse_observations(raw, self.rewards, self.dones)

    @property
    def truncated(self) -> list[bool]:
        return self._columns.truncated or [False] * len(self.dones)

    @property
    def terminated(self) -> list[bool]:
        if self._columns.terminated is not None:
            return self._columns.terminated
        if self._columns.truncated is None:
            return list(self.dones)
        return [done and not cut for done, cut in zip(self.dones, self.truncated, strict=True)]

    @property
    def metadata(self) -> list[dict[str, Any] | None]:
        told = self._columns.metadata
        return [None] * len(self.dones) if told is None else [one or None for one in told]

    def results(self) -> list[StepResult[ObsT]]:
        """One result for each session."""
        if self._all_at_once is None:
            return self._one_by_one()
        beside = (self.rewards, self.dones, self.metadata, self.terminated, self.truncated)
        return list(map(StepResult, self._all_at_once, *beside))

    def outcomes(self) -> Sequence[Outcome[ObsT]]:
        """`results`, where one that cannot be read is its own session's error."""
        try:
            return self.results()
        except Exception:  # an author's method may raise any
            return [
                _outcome(self._translation, payload) for payload in payloads_of(self._columns, self._format)
            ]

    def _one_by_one(self) -> list[StepResult[ObsT]]:
        """`results`, by the methods that an author wrote for one result."""
        results = []
        for payload in payloads_of(self._columns, self._format):
            if isinstance(payload, ProtocolError):
                raise payload
            results.append(self._translation.parse_result(payload))
        return results


class Collector(Generic[ObsT]):
    """Takes what arrives for a vector and gives one result, or one session's."""

    def __init__(
        self,
        translation: Translation[Any, ObsT, Any],
        format: Format,
        count: int,
        hints: DecodingHints | None = None,
    ) -> None:
        self._translation, self._format, self._count = translation, format, count
        self._hints = hints or DecodingHints()
        self._pieces: list[Piece[ObsT]] = []
        self._results: dict[int, StepResult[ObsT]] = {}
        self._errors: dict[int, EnvTorchError] = {}
        self.fresh: list[int] = []
        """The sessions whose outcome arrived since the last `taken_fresh`."""

    def take(self, arrived: Arrived) -> None:
        self.fresh.extend(arrived.channels)
        if arrived.columns is not None:
            self._pieces.append(Piece(arrived.columns, self._translation, self._format))
        elif arrived.error is not None:
            self._errors[arrived.channels[0]] = arrived.error
        else:
            try:
                payload = self._format.read(bytes(arrived.payload))
            except READ_ERRORS as error:
                self._errors[arrived.channels[0]] = ProtocolError(f"the reply cannot be read: {error}")
                return
            self._keep(arrived.channels[0], _outcome(self._translation, payload))

    def _keep(self, place: int, outcome: Outcome[ObsT]) -> None:
        if isinstance(outcome, EnvTorchError):
            self._errors[place] = outcome
        else:
            self._results[place] = outcome

    def read_ahead(self) -> None:
        """While the server is busy with the rest, decode what the caller will access."""
        if self._hints.observations:
            for piece in self._pieces:
                with suppress(Exception):  # it is raised to whoever accesses them
                    _ = piece.observations

    def fail(self, place: int, error: EnvTorchError) -> None:
        """A session that was not asked, for this reason."""
        self.fresh.append(place)
        self._errors[place] = error

    def taken_fresh(self) -> dict[int, Outcome[ObsT]]:
        """What arrived since the last call, by session; it is not kept."""
        fresh, self.fresh = self.fresh, []
        self._take_apart()
        return {
            place: self._errors.pop(place) if place in self._errors else self._results.pop(place)
            for place in fresh
        }

    def _take_apart(self) -> None:
        for piece in self._pieces:
            for place, outcome in zip(piece.channels, piece.outcomes(), strict=True):
                self._keep(place, outcome)
        self._pieces.clear()

    def result(self) -> VectorResult[ObsT]:
        """Everything that arrived, as columns."""
        pieces = sorted(self._pieces, key=lambda piece: piece.channels[0])
        if [channel for piece in pieces for channel in piece.channels] == list(range(self._count)):
            return self._joined(pieces)
        self._take_apart()
        rows = [self._results.get(place) for place in range(self._count)]
        return VectorResult(
            rewards=[row.reward if row else None for row in rows],
            dones=[row.done if row else False for row in rows],
            terminated=[bool(row and row.terminated) for row in rows],
            truncated=[bool(row and row.truncated) for row in rows],
            metadata=[row.metadata if row else None for row in rows],
            errors=self._errors,
            _observations=[row.observation if row else None for row in rows],  # type: ignore[misc]
        )

    def _joined(self, pieces: Sequence[Piece[ObsT]]) -> VectorResult[ObsT]:
        """The usual case: pieces that cover all sessions, in order."""

        errors: dict[int, EnvTorchError] = {}

        def read() -> Sequence[ObsT]:
            self._hints.observations = True
            try:
                observations: Sequence[ObsT] = _joined([piece.observations for piece in pieces])
            except Exception:  # as in `Piece.outcomes`
                return _fitting(pieces, errors)
            return observations

        return VectorResult(
            rewards=_joined([piece.rewards for piece in pieces]),
            dones=_joined([piece.dones for piece in pieces]),
            terminated=_joined([piece.terminated for piece in pieces]),
            truncated=_joined([piece.truncated for piece in pieces]),
            metadata=_joined([piece.metadata for piece in pieces]),
            errors=errors,
            _read=read,
            _columns=lambda: _columns([piece.fields for piece in pieces]),
        )

    @staticmethod
    def merged(
        ended: VectorResult[ObsT], begun: VectorResult[ObsT], final: dict[int, StepResult[ObsT]]
    ) -> VectorResult[ObsT]:
        """Results in which the episodes that ended were reset."""
        observations = list(ended.observations)
        for place in final:
            if place not in begun.errors:
                observations[place] = begun.observations[place]
        errors = ended.errors | begun.errors
        return replace(ended, errors=errors, final=final, _observations=observations, _columns=dict)


def _outcome(
    translation: Translation[Any, ObsT, Any], payload: dict[str, Any] | ProtocolError
) -> Outcome[ObsT]:
    """One session's result. One that cannot be read, or does not fit its class, fails that session alone."""
    if isinstance(payload, ProtocolError):
        return payload
    try:
        return translation.parse_result(payload)
    except ProtocolError as error:
        return error
    except Exception as error:
        failed = ProtocolError(f"{type(translation).__name__}._parse_result raised {error!r}")
        failed.__cause__ = error
        return failed


def _fitting(pieces: Sequence[Piece[ObsT]], errors: dict[int, EnvTorchError]) -> Sequence[ObsT]:
    """The observations that fit their class; in place of another one None, and its error in `errors`."""
    found: list[Any] = []
    for piece in pieces:
        for place, outcome in zip(piece.channels, piece.outcomes(), strict=True):
            if isinstance(outcome, EnvTorchError):
                errors[place] = outcome
                found.append(None)
            else:
                found.append(outcome.observation)
    return found


def _joined(parts: Sequence[Any]) -> Any:
    """Lists end to end; one alone as it is."""
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))


def _columns(fields: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The columns of all pieces."""
    if len(fields) == 1:
        return fields[0]
    return {
        name: _end_to_end([columns[name] for columns in fields])
        for name in fields[0]
        if all(name in columns for columns in fields)
    }


def _end_to_end(columns: Sequence[Any]) -> Any:
    if not all(is_array(column) for column in columns):
        return list(chain.from_iterable(as_lists(column) for column in columns))
    import numpy

    return numpy.concatenate(columns)
