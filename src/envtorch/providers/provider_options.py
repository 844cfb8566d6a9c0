"""Reading the options of a start: what nobody knows is refused, with the nearest name that exists."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from envtorch.errors import ConfigurationError

__all__ = ["checked_environment", "checked_port", "read_options"]

OptionsT = TypeVar("OptionsT")


def read_options(kind: type[OptionsT], given: Mapping[str, Any]) -> OptionsT:
    """`kind(**given)` for a dataclass of options; a name it does not have is a `ConfigurationError`."""
    known = [field.name for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(known)}"
            raise ConfigurationError(f"there is no option {name!r}: {hint}")
    return kind(**given)


def checked_port(port: int | None) -> int | None:
    """`port`, if it is one; None lets the provider choose."""
    if port is None or (isinstance(port, int) and 0 < port < 65536):
        return port
    raise ConfigurationError(f"port={port!r} is no port: give 1 to 65535, or leave it out for a free one")


def checked_environment(env_vars: Mapping[str, str] | None) -> dict[str, str]:
    """`env_vars` as a dictionary, if every name and value can be one."""
    found = dict(env_vars or {})
    for name, value in found.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ConfigurationError(f"{name!r} cannot be the name of an environment variable")
        if not isinstance(value, str) or "\0" in value:
            raise ConfigurationError(f"the environment variable {name} must be text, not {value!r}")
    return found
