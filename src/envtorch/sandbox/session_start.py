"""How a session on a writable root begins: its variables, its directory and its user."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from .network_access import proxy_variables
from .policy import Policy
from .prepared_roots import RootCache

__all__ = ["DEFAULT_PATH", "ROOT", "SessionStart", "other_than_root"]

ROOT = "root"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {
    "PATH": DEFAULT_PATH,
    "HOME": "/root",
    "USER": "root",
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
}


@dataclass(frozen=True, slots=True)
class SessionStart:
    """What programs of a session have when they start."""

    environment: Mapping[str, str]
    directory: str
    user: str | None
    """None: root."""

    @classmethod
    def of(
        cls,
        policy: Policy,
        root: str,
        *,
        environment: Mapping[str, str] | None,
        directory: str | None,
        user: str | None,
    ) -> Self:
        """What was asked for, else what a prepared root says, else the usual."""
        prepared = RootCache().find(root)
        image = {} if prepared is None else prepared.environment
        usual = (None, None) if prepared is None else (prepared.directory, prepared.user)
        return cls(
            {**_ENVIRONMENT, **image, **proxy_variables(policy), **(environment or {})},
            directory or usual[0] or "/root",
            other_than_root(user or usual[1]),
        )


def other_than_root(user: str | None) -> str | None:
    """A user, or None for root, however it is written."""
    return None if user in (None, ROOT, "0", "0:0", "root:root") else user
