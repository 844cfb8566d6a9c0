"""What a process gives up before it runs an agent's program on a writable root."""

import ctypes
import resource
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import kernel
from .kernel import check, libc

CAPABILITIES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 18, 24, 27, 29, 31)
"""What root may do on its own root file system: chown, dac_override, dac_read_search, fowner, fsetid, kill,
setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, sys_resource, mknod, audit_write, setfcap."""
_DROP_FROM_BOUND, _CLEAR_AMBIENT, _AMBIENT = 24, 4, 47
_LAST_TRIED = 63
_VERSION_3 = 0x20080522


@dataclass(frozen=True, slots=True)
class Confinement:
    """The filter and the limits of one session's processes."""

    seccomp: kernel.Seccomp | None
    rlimits: Mapping[int, int]

    def apply(self) -> None:
        """For good, and for all children. The next `exec` as root gives `CAPABILITIES` and no more.

        `no_new_privs` stays off, so that `su` and `sudo` work: the kernel takes a filter without it from a
        process that may administer its user namespace, which this one may until the last line.
        """
        for kind, limit in self.rlimits.items():
            _, most = resource.getrlimit(kind)
            value = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(kind, (value, value))
        if self.seccomp is not None:
            kernel.install_filter(self.seccomp.header)
        _keep_capabilities(CAPABILITIES)
        kernel.set_dumpable(True)


def _keep_capabilities(kept: Sequence[int]) -> None:
    for capability in range(_LAST_TRIED + 1):
        if capability not in kept:
            libc.prctl(_DROP_FROM_BOUND, capability, 0, 0, 0)  # EINVAL past the last one there is
    libc.prctl(_AMBIENT, _CLEAR_AMBIENT, 0, 0, 0)
    low = sum(1 << capability for capability in kept)
    header = struct.pack("Ii", _VERSION_3, 0)
    sets = struct.pack("6I", low, low, 0, 0, 0, 0)
    check(libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(sets)), "capset")
