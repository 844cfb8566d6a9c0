"""Numbers that callers give: checked before anything is sent, and again where a message arrives."""

import numbers
from typing import Any, TypeGuard

from envtorch.errors import InvalidAction

__all__ = ["LONGEST_S", "is_duration", "is_whole", "shown", "timeout_of"]

LONGEST_S = 1_000_000.0
"""The longest timeout, eleven days: sockets keep no time above that on every system."""


def timeout_of(timeout_s: Any) -> float | None:
    """A caller's `timeout_s`; None for the usual limit. Raises `InvalidAction` for what is no duration."""
    if timeout_s is None:
        return None
    if not is_duration(timeout_s) or not timeout_s > 0:
        raise InvalidAction(
            f"timeout_s is a number of seconds above 0 and up to {LONGEST_S:,.0f}, not {shown(timeout_s)}; "
            "leave it out for the usual limit",
            wrong_argument="timeout_s",
        )
    return float(timeout_s)


def is_duration(value: Any) -> TypeGuard[float]:
    """Whether this is a number of seconds, of any library, from 0 up to the longest timeout."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    given: Any = value
    return bool(0 <= given <= LONGEST_S)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether this is a whole number, of any library. True and False are not."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def shown(value: Any) -> str:
    """A value in the message of an error, in at most a hundred characters."""
    try:
        text = repr(value)
    except Exception:  # a class may have a `__repr__` of its own
        text = f"an object of class {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."
