"""Where a server's environments come from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from envtorch.env import Environment, EnvironmentSource, load_object
from envtorch.errors import ConfigurationError

__all__ = ["Factory"]

_NAMELESS = "environment"


@dataclass(frozen=True, slots=True)
class Factory:
    """Makes environments, and says what is known of them before the first one is built."""

    make: Callable[[], Environment[Any, Any, Any]]
    name: str
    environment_class: type[Environment[Any, Any, Any]] | None = None
    is_shared: bool = False
    """There is one environment, somebody else's, and every session uses it."""
    requires_promise: bool = False
    """Several environments of a class are refused unless it says `SUPPORTS_CONCURRENT_SESSIONS = True`."""

    @classmethod
    def of(cls, source: EnvironmentSource, *, requires_promise: bool = False) -> "Factory":
        if isinstance(source, str):
            return cls.of(load_object(source), requires_promise=requires_promise)
        if isinstance(source, Environment):
            return cls(lambda: source, type(source).__name__, type(source), is_shared=True)
        if not callable(source):
            raise ConfigurationError(
                f"{type(source).__name__} is no environment: pass an Environment class, a function "
                "that returns one, an instance, or 'module:name'"
            )
        inner: Any = source
        while isinstance(inner, partial):
            inner = inner.func
        name = getattr(inner, "__name__", type(inner).__name__)
        if not name.isidentifier():  # a lambda, and the name is part of paths
            name = _NAMELESS
        known = inner if isinstance(inner, type) and issubclass(inner, Environment) else None
        return cls(source, name, known, requires_promise=requires_promise)

    @property
    def allows_many(self) -> bool:
        """Whether several environments may live in one process, as far as is known before one is built."""
        return self.environment_class is not None and not (
            self.is_shared or self._refuses_many(self.environment_class)
        )

    def require_concurrency(self, environment: type[Environment[Any, Any, Any]], capacity: int) -> None:
        """Refuse several environments side by side where that is not what their author says."""
        if capacity > 1 and not self.is_shared and self._refuses_many(environment):
            raise ConfigurationError(
                f"{environment.__name__} does not say that several of it can live in one process, so "
                f"{capacity} sessions are refused; set SUPPORTS_CONCURRENT_SESSIONS = True "
                "on the class if it keeps nothing global",
                environment_name=environment.__name__,
                max_concurrent_envs=capacity,
            )

    def _refuses_many(self, environment: type[Environment[Any, Any, Any]]) -> bool:
        if environment.SUPPORTS_CONCURRENT_SESSIONS:
            return False
        said = any(
            "SUPPORTS_CONCURRENT_SESSIONS" in vars(base)
            for base in environment.__mro__
            if base is not Environment
        )
        return said or self.requires_promise
