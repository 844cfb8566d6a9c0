"""Who started something, written so that others can later tell whether the owner still lives."""

import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["OWNER_LABEL", "PROVIDER_LABEL", "OwnerTag"]

OWNER_LABEL = "envtorch.owner"
"""The label on everything a provider makes; its value is an `OwnerTag`."""

PROVIDER_LABEL = "envtorch.provider"


@dataclass(frozen=True, slots=True)
class OwnerTag:
    """One process on one machine: not merely a pid, which the kernel gives out again.

    Written as `host.pid.started`, which is a valid label value for every engine.
    """

    host: str
    """A digest of what the pid counts in: this boot of this machine, and its pid namespace."""

    pid: int
    started: str
    """When the process started, in the kernel's ticks."""

    @classmethod
    def current(cls) -> Self:
        pid = os.getpid()
        return cls(host=_host(), pid=pid, started=_started(pid) or "0")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The tag in a label; None if it is none of ours."""
        host, _, rest = text.partition(".")
        pid, _, started = rest.partition(".")
        if not (host and pid.isdecimal() and started.isdecimal()):
            return None
        return cls(host=host, pid=int(pid), started=started)

    @property
    def is_dead(self) -> bool:
        """True only when it is certain: an owner on another machine may well live."""
        return self.host == _host() and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"{self.host}.{self.pid}.{self.started}"


def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, namespace = socket.gethostname(), ""
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]


def _started(pid: int) -> str | None:
    """The start time of a live process; None when there is none with this pid."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return _started_without_proc(pid)
    except OSError:
        return None
    # The command's name, in brackets, may hold spaces and brackets of its own.
    fields = stat.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started  # a zombie owns nothing


def _started_without_proc(pid: int) -> str | None:
    if Path("/proc/self").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "0"
