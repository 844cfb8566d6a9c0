"""Values of one class as columns: one list or array for each field, instead of one object for each value.

A column is validated as a whole, by pydantic or by its dtype, so that values which nobody looks at one by one
need never become objects.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema, WithJsonSchema

__all__ = ["Table", "as_lists", "is_array", "rows_of", "table_of"]

_SCALARS = {bool: "b", int: "iu", float: "fiu"}
"""The kinds of dtype that hold nothing but values of a type."""
_SIMPLE = (bool, int, float, str, bytes, NoneType)
_HARMLESS = {
    "arbitrary_types_allowed", "defer_build", "extra", "from_attributes", "frozen", "hide_input_in_errors",
    "json_schema_extra", "protected_namespaces", "title", "use_attribute_docstrings", "validate_assignment",
}  # fmt: skip
"""What a class may be configured with that says nothing of its fields' values."""


class Table:
    """How columns of one class are checked, filled up, and made of values."""

    def __init__(self, kind: type[BaseModel]) -> None:
        self.kind = kind
        self.fields: dict[str, FieldInfo] = dict(kind.model_fields)
        self._defaults = {name: _default_of(field) for name, field in self.fields.items()}
        self._required = {name for name, field in self.fields.items() if field.is_required()}
        self.shown = tuple(name for name, field in self.fields.items() if not field.exclude)
        """The fields that travel."""
        self._lists: dict[str, TypeAdapter[list[Any]]] = {}
        self._dtypes = {name: _dtypes_of(field) for name, field in self.fields.items()}

    def checked(self, columns: Mapping[str, Any], count: int) -> "Filled":
        """All columns of the class, each with `count` values that fit; those left out have their defaults.

        Raises `ValueError`, which names the column.
        """
        unknown = [name for name in columns if name not in self.fields]
        if unknown:
            raise ValueError(
                f"{self.kind.__name__} has no field {unknown[0]!r}; it has {', '.join(self.fields)}"
            )
        for name in self._required - columns.keys():
            raise ValueError(f"there is no column {name!r}, which every {self.kind.__name__} has")
        fitting = {name: self._checked(name, column, count) for name, column in columns.items()}
        return Filled(fitting, self._defaults, count)

    def _checked(self, name: str, column: Any, count: int) -> Any:
        if not _is_column(column):
            raise ValueError(
                f"column {name!r} is one {type(column).__name__}; it has to be a list or an array of {count}"
            )
        if len(column) != count:
            raise ValueError(f"column {name!r} has {len(column)} values, and there are {count} sessions")
        if is_array(column):
            if self._takes(name, column):
                return column
            column = column.tolist()
        try:
            return self._list_of(name).validate_python(column)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"column {name!r}, value {where}: {first['msg']}") from error

    def _list_of(self, name: str) -> TypeAdapter[list[Any]]:
        if name not in self._lists:
            field = self.fields[name]
            item = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            self._lists[name] = TypeAdapter(list[item], config={"arbitrary_types_allowed": True})  # type: ignore[valid-type]
        return self._lists[name]

    def _takes(self, name: str, array: Any) -> bool:
        """Whether an array is a column of this field as it is."""
        dtypes = self._dtypes[name]
        return dtypes is None or (array.ndim == 1 and array.dtype.kind in dtypes)

    def columns(self, values: Sequence[Any], names: Iterable[str] | None = None) -> dict[str, list[Any]]:
        """The columns of values of exactly this class: of these fields, or of all that travel.

        Raises `KeyError` when a value lacks one of them.
        """
        own = [value.__dict__ for value in values]
        return {name: [each[name] for each in own] for name in (self.shown if names is None else names)}

    def says(self, name: str, columns: "Filled") -> bool:
        """Whether there is anything in a column: it was given, or its defaults are no empty containers."""
        return columns.was_given(name) or (
            name in self.fields and self.fields[name].default_factory is not dict
        )


class Filled(Mapping[str, Any]):
    """All columns of a class. One that was left out has its defaults, made when it is asked for."""

    def __init__(
        self,
        given: Mapping[str, Any],
        defaults: "Mapping[str, Callable[[int], list[Any]] | None]",
        count: int,
    ) -> None:
        self._columns, self._defaults, self._count = dict(given), defaults, count

    def __getitem__(self, name: str) -> Any:
        column = self._columns.get(name)
        if column is None:
            fill = self._defaults[name]
            assert fill is not None, "a field without a default is always there"
            column = self._columns[name] = fill(self._count)
        return column

    def __contains__(self, name: object) -> bool:
        return name in self._defaults

    def __iter__(self) -> Iterator[str]:
        return iter(self._defaults)

    def __len__(self) -> int:
        return len(self._defaults)

    def was_given(self, name: str) -> bool:
        """Whether the column has values of its own."""
        return name in self._columns


def table_of(kind: type) -> Table | None:
    """The table of a class; None for one that has more to say of its values than their fields' types."""
    if kind not in _tables:
        _tables[kind] = _find_table(kind)
    return _tables[kind]


_tables: dict[type, Table | None] = {}


def _find_table(kind: type) -> Table | None:
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return None
    own = kind.__pydantic_decorators__
    has_own_way = (
        own.validators
        or own.field_validators
        or own.root_validators
        or own.model_validators
        or own.field_serializers
        or own.model_serializers
        or own.computed_fields
        or any(_is_special(field) for field in kind.model_fields.values())
        or not _HARMLESS.issuperset(kind.model_config)
        or kind.model_config.get("extra") == "allow"  # values may have fields that the class does not know
        or hasattr(kind, "__post_init__")
        or kind.model_post_init is not BaseModel.model_post_init
        or getattr(kind.model_validate, "__func__", None)
        is not getattr(BaseModel.model_validate, "__func__", 0)
    )
    return None if has_own_way else Table(kind)


def _is_special(field: FieldInfo) -> bool:
    """Whether it is called otherwise on the wire, or there is more to its values than its type says."""
    is_renamed = field.alias or field.validation_alias or field.serialization_alias
    has_own_default = field.default_factory_takes_validated_data or field.validate_default
    return bool(is_renamed or has_own_default or field.discriminator)


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One dictionary for each place of the columns."""
    rows: list[dict[str, Any]] = [{} for _ in next(iter(columns.values()), ())]
    for name, column in columns.items():
        for row, value in zip(rows, as_lists(column), strict=True):
            row[name] = value
    return rows


def as_lists(column: Any) -> Any:
    """A column whose items are Python's own values, or arrays."""
    return column.tolist() if is_array(column) and column.ndim == 1 else column


def is_array(value: Any) -> bool:
    return hasattr(value, "__array_interface__") and value.ndim > 0


def _is_column(value: Any) -> bool:
    return (
        type(value) is list
        or is_array(value)
        or (isinstance(value, Sequence) and not isinstance(value, str | bytes))
    )


def _default_of(field: FieldInfo) -> Callable[[int], list[Any]] | None:
    """What fills a column that was left out; None for a field that may not be."""
    if field.is_required():
        return None
    make: Any = field.default_factory
    if make is not None:
        return lambda count: [make() for _ in range(count)]
    default = field.default
    if type(default) in _SIMPLE:
        return lambda count: [default] * count
    return lambda count: [field.get_default() for _ in range(count)]


def _is_limited(field: FieldInfo) -> bool:
    """Whether values of its type may not be values of the field."""
    return any(not isinstance(said, WithJsonSchema | SkipJsonSchema) for said in field.metadata)


def _dtypes_of(field: FieldInfo) -> str | None:
    """The kinds of dtype whose arrays are columns of a field as they are; None for all of them."""
    if _is_limited(field):
        return ""  # its values are limited, and each has to be looked at
    hints = _alternatives(field.annotation)
    if any(hint is Any or _is_an_array_type(hint) for hint in hints):
        return None
    return "".join(_SCALARS.get(hint, "") for hint in hints)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_an_array_type(hint: Any) -> bool:
    return getattr(get_origin(hint) or hint, "__module__", "").partition(".")[0] == "numpy"
