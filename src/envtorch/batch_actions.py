"""What environments that step together are given: the actions of all of them, as values or as columns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, overload

from envtorch.types import ActT

__all__ = ["Actions"]


class Actions(Sequence[ActT], Generic[ActT]):
    """One action for each of several environments, in their order.

    As a sequence it holds the actions themselves, which are made when the first of them is looked at.
    `column(name)` is one field of all of them: a list, or an array if it was sent as one. Who asks for
    nothing but columns never pays for an action object.
    """

    __slots__ = ("_columns", "_count", "_made", "_make")

    def __init__(
        self, count: int, make: Callable[[], Sequence[ActT]], columns: Mapping[str, Any] | None = None
    ) -> None:
        """`columns` hold values that are validated already, one column for each field."""
        self._count, self._make, self._columns = count, make, columns
        self._made: Sequence[ActT] | None = None

    @classmethod
    def of(cls, actions: Sequence[ActT]) -> "Actions[ActT]":
        """Actions that are there as values."""
        return cls(len(actions), lambda: actions)

    def column(self, name: str) -> Any:
        """One field of every action. Raises `AttributeError` when they have no such field."""
        if self._columns is None:
            return [getattr(action, name) for action in self.values()]
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(self._columns)
            raise AttributeError(f"the actions have no field {name!r}; they have {known}") from None

    def values(self) -> Sequence[ActT]:
        """All of them, as a plain sequence."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ActT]:
        return iter(self.values())

    @overload
    def __getitem__(self, index: int) -> ActT: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ActT]: ...
    def __getitem__(self, index: int | slice) -> ActT | Sequence[ActT]:
        return self.values()[index]
