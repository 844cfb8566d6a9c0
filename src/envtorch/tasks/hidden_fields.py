"""Fields of a task that stay on the server."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

from envtorch.errors import ConfigurationError

__all__ = ["HiddenFields"]

TaskT = TypeVar("TaskT")


class HiddenFields(Generic[TaskT]):
    """Which fields of a task are hidden, and what is left without them.

    A name that is not a field of the task's class is refused at once. Where the class does not declare all of
    its fields (a `dict`, a model that allows extra fields), every task has to have the undeclared names.
    """

    def __init__(self, kind: type[TaskT], adapter: TypeAdapter[TaskT], names: Iterable[str]) -> None:
        if isinstance(names, str):
            raise ConfigurationError(f"hidden is a list of fields: write hidden=[{names!r}]")
        self._adapter = adapter
        self._names = frozenset(names)
        declared = _declared_fields(kind)
        self._undeclared = self._names.difference(declared or ())
        if declared is not None and self._undeclared and not _allows_extra_fields(kind):
            raise ConfigurationError(
                f"{min(self._undeclared)!r} cannot be hidden: it is not a field of {kind.__name__}, "
                f"which has {', '.join(declared)}"
            )

    def __bool__(self) -> bool:
        return bool(self._names)

    def public(self, task: TaskT) -> Any:
        """The task as JSON values, without what is hidden. Raises `ConfigurationError` if it cannot be."""
        if not self._names:
            return self._adapter.dump_python(task, mode="json")
        if self._undeclared:
            self._check(self._adapter.dump_python(task, mode="json"))
        fields = self._adapter.dump_python(task, mode="json", exclude=set(self._names))
        if not isinstance(fields, dict):
            raise ConfigurationError("this task has no fields, and some are to be hidden")
        # A serializer that the class defines itself may not heed `exclude`.
        return {name: value for name, value in fields.items() if name not in self._names}

    def _check(self, fields: Any) -> None:
        missing = self._undeclared.difference(fields if isinstance(fields, dict) else ())
        if missing:
            raise ConfigurationError(
                f"this task has no field {min(missing)!r}, which is to be hidden: correct the name in "
                "hidden=[...], or give every task that field"
            )


def _declared_fields(kind: type[Any]) -> list[str] | None:
    """The names that a class of tasks declares, or None if it declares none, as `dict`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [*kind.model_fields, *kind.model_computed_fields]
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if hasattr(kind, "__required_keys__"):  # a TypedDict
        return sorted(kind.__required_keys__ | kind.__optional_keys__)
    return None


def _allows_extra_fields(kind: type[Any]) -> bool:
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", {})
    return config.get("extra") == "allow"
