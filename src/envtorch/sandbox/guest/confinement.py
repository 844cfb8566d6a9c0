"""What a process gives up before it runs an agent's program on a writable root."""

import ctypes
import resource
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import kernel
from .kernel import check, libc

CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31)
"""What package managers, `su` and servers need of root: chown, dac_override, fowner, fsetid, kill, setgid,
setuid, setpcap, net_bind_service, sys_chroot, audit_write, setfcap. Not among them: sys_resource, which
changes limits that all sessions of a store share, and net_raw, whose sockets hold memory that no control
group counts."""
_KILLED_FIRST = b"500"
"""For the kernel, when memory is used up: sooner than the init, which has nothing to do with it."""
_DROP_FROM_BOUND, _CLEAR_AMBIENT, _AMBIENT = 24, 4, 47
_LAST_TRIED = 63
_VERSION_3 = 0x20080522


@dataclass(frozen=True, slots=True)
class Confinement:
    """The filters and the limits of one session's processes."""

    filters: Sequence[kernel.Seccomp]
    rlimits: Mapping[int, int]

    def apply(self) -> None:
        """For good, and for all children. The next `exec` as root gives `CAPABILITIES` and no more.

        Until that `exec` the process has the memory of the init it was forked from. It stays undumpable, so
        that the agent's processes, which have the same user and capabilities, can neither read nor write it,
        nor open its descriptors; a program that is executed is dumpable by itself.

        `no_new_privs` stays off, so that `su` and `sudo` work: the kernel takes filters without it from a
        process that may administer its user namespace, which this one may until the last line.
        """
        _be_killed_first()
        for kind, limit in self.rlimits.items():
            _, most = resource.getrlimit(kind)
            value = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(kind, (value, value))
        for one in self.filters:
            kernel.install_filter(one.header)
        _keep_capabilities(CAPABILITIES)


def _be_killed_first() -> None:
    """An undumpable process may not write to its own settings. While it has every capability, the agent's
    processes have fewer and cannot look into it, dumpable or not."""
    kernel.set_dumpable(True)
    with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(_KILLED_FIRST)
    kernel.set_dumpable(False)


def _keep_capabilities(kept: Sequence[int]) -> None:
    for capability in range(_LAST_TRIED + 1):
        if capability not in kept:
            libc.prctl(_DROP_FROM_BOUND, capability, 0, 0, 0)  # EINVAL past the last one there is
    libc.prctl(_AMBIENT, _CLEAR_AMBIENT, 0, 0, 0)
    low = sum(1 << capability for capability in kept)
    header = struct.pack("Ii", _VERSION_3, 0)
    sets = struct.pack("6I", low, low, 0, 0, 0, 0)
    check(libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(sets)), "capset")
