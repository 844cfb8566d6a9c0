"""OpenEnv's providers: ours, where this installation has them."""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, Self

__all__ = ["ContainerProvider", "RuntimeProvider"]


class ContainerProvider(ABC):
    """Starts a server in a container, and tells its address."""

    @abstractmethod
    def start_container(
        self, image: str, port: int | None = None, env_vars: dict[str, str] | None = None, **options: Any
    ) -> str: ...

    @abstractmethod
    def stop_container(self) -> None: ...

    @abstractmethod
    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None: ...

    def close(self) -> None:  # noqa: B027, most providers hold nothing of their own
        """Let go of what the provider itself holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_container()


class RuntimeProvider(ABC):
    """Starts a server without a container, and tells its address."""

    @abstractmethod
    def start(
        self, port: int | None = None, env_vars: dict[str, str] | None = None, **options: Any
    ) -> str: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def wait_for_ready(self, timeout_s: float = 30.0) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(import_module("envtorch.providers"), name)
    except ImportError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
