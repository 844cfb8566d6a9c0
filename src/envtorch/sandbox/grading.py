"""Judging a frozen copy of a sandbox, where the agent has nothing left to tamper with."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .results import Verdict

if TYPE_CHECKING:
    from .sandbox import Sandbox


def grade(sandbox: "Sandbox", checker: "Callable[[Sandbox], Any] | str", *, files: Mapping[str, bytes] | None) -> Verdict:
    raise NotImplementedError
