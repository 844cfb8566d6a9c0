"""The actions of a vector, encoded: from a list of them, or from a column for each of their fields."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from envtorch.client.translation import Translation
from envtorch.errors import InvalidAction
from envtorch.protocol.columns import is_array, rows_of
from envtorch.protocol.encoding import encode_value
from envtorch.protocol.formats import JSON, Format

__all__ = ["Outgoing", "OutgoingColumns", "OutgoingRows", "rows_in"]

HALF = 128
"""From two times this many sessions on, a step travels as two halves: while the server works on one, its
client reads the other. Below that a second frame costs more than it wins."""


class Outgoing(Protocol):
    """One action for each of several sessions."""

    def parts(self) -> Sequence[slice]:
        """Which of them travel together."""

    def data(self, part: slice) -> dict[str, msgspec.Raw]:
        """What a `steps` request says of those."""


class OutgoingRows:
    """Actions as values. Where the environments step together, they travel as columns all the same."""

    def __init__(
        self,
        translation: Translation[Any, Any, Any],
        format: Format,
        actions: Sequence[Any],
        *,
        together: bool,
    ) -> None:
        self._translation, self._format, self._actions, self._together = (
            translation,
            format,
            actions,
            together,
        )

    def parts(self) -> Sequence[slice]:
        count = len(self._actions)
        if count < 2 * HALF or self._together or self._format is not JSON:
            return [slice(count)]  # an array in two halves would have to be copied to be one
        return [slice(count // 2), slice(count // 2, count)]

    def data(self, part: slice) -> dict[str, msgspec.Raw]:
        translation, format, actions = self._translation, self._format, self._actions[part]
        columns = translation.encode_columns(actions, format) if self._together else None
        if columns is not None:
            return {"columns": msgspec.Raw(columns)}
        rows = translation.encode_actions(actions, format)
        if rows is None:
            rows = format.write(
                [msgspec.Raw(translation.encode_action(action, format)) for action in actions]
            )
        return {"actions": msgspec.Raw(rows)}

    def refusals(self) -> dict[int, InvalidAction]:
        """The actions that cannot be encoded, by their place in the list, and why."""
        refused: dict[int, InvalidAction] = {}
        for place, action in enumerate(self._actions):
            try:
                self._translation.encode_action(action, self._format)
            except InvalidAction as error:
                refused[place] = error
        return refused

    def only(self, places: Sequence[int]) -> "OutgoingRows":
        """Some of the actions."""
        chosen = [self._actions[place] for place in places]
        return OutgoingRows(self._translation, self._format, chosen, together=self._together)


class OutgoingColumns:
    """Actions that the caller has as columns: a list or an array for each field, or for some."""

    def __init__(self, format: Format, columns: Mapping[str, Any], count: int) -> None:
        for name, column in columns.items():
            if not is_array(column) and (isinstance(column, str | bytes) or not isinstance(column, Sequence)):
                raise InvalidAction(f"column {name!r} is one {type(column).__name__}, not a list or an array")
            if len(column) != count:
                raise InvalidAction(
                    f"a vector of {count} takes as many actions, not {len(column)} of {name!r}"
                )
        self._format, self._columns, self._count = format, columns, count

    def parts(self) -> Sequence[slice]:
        return [slice(self._count)]

    def data(self, part: slice) -> dict[str, msgspec.Raw]:
        return {"columns": msgspec.Raw(encode_value(self._columns, self._format, blame=InvalidAction))}


def rows_in(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The actions that columns stand for, as dictionaries."""
    return rows_of(columns) if columns else [{}] * count
