"""Mounts that are made detached, by descriptor, and attached elsewhere: the newer mount calls of Linux.

Their numbers are the same on every architecture.
"""

import ctypes
import os
import struct
from collections.abc import Sequence

from . import kernel
from .kernel import check, libc

_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442
_HERE = -100
_CLONE, _CLONE_CLOEXEC = 1, 0x80000
_FROM_EMPTY_PATH, _EMPTY_PATH = 4, 0x1000
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_ATTR_IDMAP = 0x00100000
_REMOUNT, _MOVE = 32, 8192


def clone_tree(path: str) -> int:
    """A detached copy of the mount at `path`, without those below it."""
    result = libc.syscall(_OPEN_TREE, _HERE, os.fsencode(path), ctypes.c_uint(_CLONE | _CLONE_CLOEXEC))
    return check(result, f"open_tree {path}")


def map_owners(tree: int, user_namespace: int) -> None:
    """Show the files of a detached mount as owned by the ids that they have in a user namespace."""
    attributes = struct.pack("QQQQ", _ATTR_IDMAP, 0, 0, user_namespace)
    flags = ctypes.c_uint(_EMPTY_PATH)
    check(libc.syscall(_MOUNT_SETATTR, tree, b"", flags, attributes, len(attributes)), "mount_setattr")


def attach(tree: int, path: str) -> None:
    """Mount a detached tree at `path`."""
    flags = ctypes.c_uint(_FROM_EMPTY_PATH)
    check(libc.syscall(_MOVE_MOUNT, tree, b"", _HERE, os.fsencode(path), flags), f"move_mount {path}")


def make_overlay(lowers: Sequence[str], upper: str | None = None, work: str | None = None) -> int:
    """A detached overlay of `lowers`, the topmost first; without `upper` it is read-only.

    `userxattr` because a user namespace may set no other attributes: without it, a directory of a lower layer
    could be neither replaced nor renamed. `volatile` because nobody recovers a session after a power cut.
    """
    context = check(libc.syscall(_FSOPEN, b"overlay", ctypes.c_uint(_CLOEXEC)), "fsopen overlay")
    try:
        for lower in lowers:
            _configure(context, _SET_STRING, "lowerdir+", lower)
        _configure(context, _SET_FLAG, "userxattr")
        if upper is not None and work is not None:
            _configure(context, _SET_STRING, "upperdir", upper)
            _configure(context, _SET_STRING, "workdir", work)
            _configure(context, _SET_FLAG, "volatile")
        _configure(context, _CREATE)
        result = libc.syscall(_FSMOUNT, context, ctypes.c_uint(_CLOEXEC), ctypes.c_uint(0))
        return check(result, "fsmount overlay")
    finally:
        os.close(context)


def _configure(context: int, command: int, key: str | None = None, value: str | None = None) -> None:
    words = [None if text is None else os.fsencode(text) for text in (key, value)]
    what = f"overlay {key or 'mount'}"
    check(libc.syscall(_FSCONFIG, context, ctypes.c_uint(command), *words, 0), what)


def freeze(path: str) -> None:
    """Make the mount at `path` read-only. EBUSY while anything is open for writing there.

    The mount (`BIND`) and not the file system, which has no other: the kernel forgets every cached name of a
    file system that is made read-only, which takes longer the more files were used.
    """
    kernel.mount(None, path, None, _REMOUNT | kernel.BIND | kernel.READ_ONLY)


def thaw(path: str) -> None:
    kernel.mount(None, path, None, _REMOUNT | kernel.BIND)


def move(source: str, target: str) -> None:
    kernel.mount(source, target, None, _MOVE)


def unmount(path: str) -> None:
    """Take a mount away; its files stay for whoever still has them open."""
    check(libc.umount2(os.fsencode(path), kernel.DETACH), f"umount {path}")
