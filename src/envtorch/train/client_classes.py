"""Which client an adapter plays with: a class, or the name of one where it has to be written in a file."""

from typing import Any

from envtorch.client import EnvClient
from envtorch.env import load_object
from envtorch.errors import ConfigurationError

__all__ = ["GivenClient", "client_class"]

GivenClient = type[EnvClient[Any, Any, Any]] | str
"""A client class, or `"module:Class"`."""


def client_class(given: GivenClient) -> type[EnvClient[Any, Any, Any]]:
    """The class itself. Raises `ConfigurationError` for what is not a client class."""
    found: object = load_object(given) if isinstance(given, str) else given
    if isinstance(found, type) and issubclass(found, EnvClient):
        return found
    raise ConfigurationError(
        f"{given!r} is not a client class: give a subclass of EnvClient, or its name as 'module:Class'"
    )
