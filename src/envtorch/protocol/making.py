"""Objects of a class from columns that fit it: what pydantic makes of rows, with nothing looked at twice.

Columns are validated as a whole. To make rows of them, only to have each validated again, would cost more
than everything else that a client does for a step.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

__all__ = ["Maker", "maker_of"]

_new: Callable[[type], Any] = object.__new__
_slots = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
_set_values, _set_names, _set_extra, _set_private = (vars(BaseModel)[slot].__set__ for slot in _slots)
"""What makes a model of an object; `BaseModel.model_construct` sets the same four, one object at a time."""


class Maker:
    """Makes the objects of a class whose objects are their fields and nothing else."""

    def __init__(
        self, kind: type[BaseModel], fields: Mapping[str, FieldInfo], defaults: Mapping[str, Any]
    ) -> None:
        """`defaults` has the values that all objects may share."""
        self._kind = kind
        self._blank = {name: defaults.get(name) for name in fields}
        self._each = {
            name: _own_default(field)
            for name, field in fields.items()
            if name not in defaults and not field.is_required()
        }

    def make(self, columns: Mapping[str, Any], count: int, beside: Mapping[str, Any] = {}) -> list[Any]:
        """`count` objects of columns that fit.

        Of those left out they have the defaults. What is in `beside` they have, too, though nobody set it.
        """
        values = list(map(dict.copy, repeat(self._blank, count)))
        for name, column in {**self._defaults(columns, count), **columns, **beside}.items():
            for own, value in zip(values, column, strict=True):
                own[name] = value
        made = list(map(_new, repeat(self._kind, count)))
        _all(map(_set_values, made, values))
        _all(map(_set_names, made, map(set.copy, repeat(set(columns)))))
        _all(map(_set_extra, made, repeat(None)))
        _all(map(_set_private, made, repeat(None)))
        return made

    def _defaults(self, columns: Mapping[str, Any], count: int) -> dict[str, list[Any]]:
        """The defaults of which each object has its own."""
        return {
            name: [make() for _ in range(count)] for name, make in self._each.items() if name not in columns
        }


def maker_of(
    kind: type[BaseModel], fields: Mapping[str, FieldInfo], defaults: Mapping[str, Any]
) -> Maker | None:
    """The maker of a class; None for one whose objects are more than their fields."""
    is_more = (
        kind.__init__ is not BaseModel.__init__
        or kind.__new__ is not object.__new__
        or getattr(kind, "__private_attributes__", None)  # `BaseModel` itself has none
        or kind.model_config.get("extra") == "allow"
    )
    return None if is_more else Maker(kind, fields, defaults)


def _own_default(field: FieldInfo) -> Callable[[], Any]:
    made_by: Any = field.default_factory
    return field.get_default if made_by is None else made_by


def _all(done: Iterable[object]) -> None:
    """Have everything done: with no step of Python's between two of them."""
    deque(done, 0)
