"""Copies of a live environment: by its author's own `fork()`, or by `copy.deepcopy`.

Where an environment is copied is up to whoever drives the flow: always where it lives, between two calls.
"""

import copy
from collections.abc import Generator
from typing import Any

from envtorch.env import Environment
from envtorch.errors import EnvTorchError, Unsupported

__all__ = ["fork_environment"]

AnyEnvironment = Environment[Any, Any, Any]


def fork_environment(environment: AnyEnvironment, count: int) -> Generator[Any, Any, list[AnyEnvironment]]:
    """`count` copies, all or none. Raises `Unsupported`, with the reason, when it cannot be copied."""
    copies: list[AnyEnvironment] = []
    try:
        for _ in range(count):
            copies.append((yield from _one(environment)))
    except BaseException:
        for made in copies:
            yield made.close()
        raise
    return copies


def _one(environment: AnyEnvironment) -> Generator[Any, Any, AnyEnvironment]:
    name = type(environment).__name__
    own = getattr(environment, "fork", None)
    try:
        made = copy.deepcopy(environment) if own is None else (yield own())
    except (EnvTorchError, MemoryError):
        raise
    except Exception as error:
        how = "copy.deepcopy" if own is None else "its fork()"
        hint = "; define fork() on it" if own is None else ""
        reason = f"{type(error).__name__}: {error}"
        raise Unsupported(f"{name} cannot be forked: {how} failed with {reason}{hint}") from error
    if made is environment or not isinstance(made, Environment):
        raise Unsupported(f"{name} cannot be forked: its fork() must give another environment")
    return made
