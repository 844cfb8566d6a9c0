"""What a sandbox may use, see and do: one frozen value."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from envtorch.errors import ConfigurationError

from .egress.destinations import AllowList
from .root_names import is_root_name

__all__ = ["PROTECTIONS", "Policy"]

MEGABYTE = 1024 * 1024

PROTECTIONS = frozenset(
    {"network", "filesystem", "processes", "memory", "disk", "syscalls", "privileges", "fork", "limits"}
)
"""What `require` may name: what is protected, whichever layers do it on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of a sandbox, what it can see, and what it refuses to start without."""

    memory_bytes: int = 512 * MEGABYTE
    """Private memory that can be written to, on top of the bare interpreter's: of any one process, and of all
    processes together."""
    processes: int = 64
    """Processes and threads together."""
    open_files: int = 256
    disk_bytes: int = 64 * MEGABYTE
    """Size of the workspace and temporary files together, and of any one file."""
    timeout_s: float = 30.0
    """Wall clock of one run, unless the run says otherwise; exposed functions are not counted."""
    grace_s: float = 1.0
    """How long interrupted code may take to stop before it is killed, and its state with it."""
    output_bytes: int = MEGABYTE
    """How much of each of stdout and stderr is kept."""
    preload: tuple[str, ...] = ()
    """Modules imported once, in the zygote, and shared by all sandboxes copy-on-write."""
    readable: tuple[str, ...] = ()
    """Absolute host paths the sandbox may read besides the interpreter and its packages."""
    require: frozenset[str] = frozenset({"network", "filesystem", "processes"})
    """Protections without which the sandbox refuses to start: see `PROTECTIONS`."""
    namespaces: bool = True
    """False asks for container grade even where namespaces are allowed."""
    root: str | None = None
    """A root file system that the session may change, for a `Workspace`: `"host"` for a copy-on-write view of
    this machine's programs and public settings, the name of a root that `envtorch rootfs` prepared, or the
    absolute path of an unpacked image."""
    network: tuple[str, ...] = ()
    """Hosts that a `Workspace` may reach, through a proxy of its owner's: names, `*.name`, addresses or
    networks, with `:port` where it is not 80 and 443. Nothing else can be reached."""
    network_bytes: int = 1024 * MEGABYTE
    """How much may be sent and received through the proxy together, in the life of a session."""
    landlock_abi: int | None = None
    """The newest Landlock ABI to use, to try out what holds on an older kernel; None for the kernel's own."""

    def __post_init__(self) -> None:
        for name in ("preload", "readable", "network"):
            object.__setattr__(self, name, _strings(name, getattr(self, name)))
        object.__setattr__(self, "require", frozenset(_strings("require", self.require)))
        for name, least in _LEAST.items():
            _check_number(name, getattr(self, name), least)
        if unknown := self.require - PROTECTIONS:
            raise ConfigurationError(
                f"require names {', '.join(sorted(unknown))}; there are: {', '.join(sorted(PROTECTIONS))}"
            )
        if self.landlock_abi is not None:
            _check_number("landlock_abi", self.landlock_abi, 0)
        self._check_root()
        for path in self.readable:
            if not os.path.isabs(path):
                raise ConfigurationError(f"readable paths must be absolute, and {path!r} is not")

    def _check_root(self) -> None:
        try:
            AllowList.of(self.network)
        except ValueError as error:
            raise ConfigurationError(f"network: {error}") from None
        if self.root is None:
            if self.network:
                raise ConfigurationError("network needs a writable root: Policy(root='host', network=[...])")
            return
        if not isinstance(self.root, str) or not (
            self.root == "host" or os.path.isabs(self.root) or is_root_name(self.root)
        ):
            raise ConfigurationError(
                "root is 'host', the name of a prepared root, or the absolute path of a directory, not "
                f"{self.root!r}"
            )
        if not self.namespaces:
            raise ConfigurationError("a writable root needs namespaces: leave namespaces=True")
        if self.open_files < _SHELL_FILES:
            raise ConfigurationError(f"open_files must be at least {_SHELL_FILES} on a writable root")
        if self.readable or self.preload:
            raise ConfigurationError("a writable root has no readable paths and no preloaded modules")

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """The policy that `options` describes. An option nobody knows is an error."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := set(options) - known:
            raise ConfigurationError(
                f"a policy has no {', '.join(sorted(map(str, unknown)))}; it has: {', '.join(sorted(known))}"
            )
        return cls(**options)


_SHELL_FILES = 128
"""A shell keeps its own descriptors above those of programs."""

_LEAST: Mapping[str, float] = {
    "memory_bytes": 8 * MEGABYTE,
    "processes": 1,
    "open_files": 32,
    "disk_bytes": 64 * 1024,
    "timeout_s": 0.001,
    "grace_s": 0.0,
    "output_bytes": 1024,
    "network_bytes": 1024,
}


def _check_number(name: str, value: Any, least: float) -> None:
    kinds: tuple[type, ...] = (int, float) if name.endswith("_s") else (int,)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(value, kinds):
        raise ConfigurationError(f"{name} must be a number, not {value!r}")
    if not least <= value < float("inf"):
        raise ConfigurationError(f"{name} must be at least {least:g}, and finite, not {value!r}")


def _strings(name: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigurationError(f"{name} must be a collection of strings, not {values!r}")
    found = tuple(values)
    if not all(isinstance(value, str) and value for value in found):
        raise ConfigurationError(f"{name} must hold strings only, not {found!r}")
    return found
