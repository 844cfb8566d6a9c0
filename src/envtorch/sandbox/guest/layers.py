"""Layers of a copy-on-write root: how names are hidden, and what is hidden of the machine's own.

A layer is a directory as overlayfs understands it with `userxattr`: a character device 0/0 hides a name, and
the attribute `user.overlay.opaque` on a directory hides what lower layers have in it.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

OPAQUE = "user.overlay.opaque"

_KEPT = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc")
"""What a session sees of the machine's root, besides the few folders of `_KEPT_BELOW`."""
_EMPTY = {"tmp": 0o1777, "root": 0o700, "home": 0o755, "run": 0o755, "srv": 0o755, "opt": 0o755, "mnt": 0o755}
_KEPT_BELOW = {"var": ("lib", "cache"), "var/lib": ("dpkg", "apt", "ucf"), "var/cache": ("debconf",)}
"""What a package manager must know. Of other folders below `/var` only the names are left."""
_WORLD_READABLE = 0o004


def make_opaque(path: str) -> None:
    os.setxattr(path, OPAQUE, b"y")


def hide(path: str) -> None:
    """Make a whiteout: in this layer and those below it, there is nothing of that name."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o600, 0)


def mask_host(layer: str, root: str = "/") -> None:
    """Fill `layer` so that, above `root`, it leaves the system's programs and public settings, and no more.

    Hidden are: all folders but those of the system, what is in the home directories, logs and spools, and
    every file below /etc and /usr that not every user may read.
    """
    for name in os.listdir(root):
        if name in _KEPT or name == "var":
            continue
        if name in _EMPTY or name in ("dev", "proc", "sys"):
            os.mkdir(f"{layer}/{name}", 0o755)
            make_opaque(f"{layer}/{name}")
        else:
            hide(f"{layer}/{name}")
    for name, mode in _EMPTY.items():
        os.makedirs(f"{layer}/{name}", exist_ok=True)
        os.chmod(f"{layer}/{name}", mode)
    for folder, kept in _KEPT_BELOW.items():
        _empty_all_but(layer, root, folder, kept)
    _make_temporary(layer)
    for name in ("etc", "usr"):
        for secret in _secrets(f"{root.rstrip('/')}/{name}"):
            hide(f"{layer}/{secret.removeprefix(root).lstrip('/')}")


def _make_temporary(layer: str) -> None:
    place = f"{layer}/var/" + "tmp"
    os.makedirs(place, exist_ok=True)
    os.chmod(place, 0o1777)  # noqa: S103  as everywhere


def _empty_all_but(layer: str, root: str, folder: str, kept: Sequence[str]) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(f"{root.rstrip('/')}/{folder}"):
            if entry.name in kept:
                continue
            place = f"{layer}/{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                os.makedirs(place)
                make_opaque(place)
            elif not entry.is_symlink():
                hide(place)


def _secrets(folder: str) -> Iterator[str]:
    """Files and folders that not every user may read; what is below such a folder is not told."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            continue
        is_public = entry.stat(follow_symlinks=False).st_mode & _WORLD_READABLE
        is_folder = entry.is_dir(follow_symlinks=False)
        # A set-user-id program that only its group may read is a program, and no secret.
        if not is_public and not (entry.stat(follow_symlinks=False).st_mode & 0o111 and not is_folder):
            yield entry.path
        elif is_folder:
            yield from _secrets(entry.path)


def is_whiteout(status: os.stat_result) -> bool:
    """Whether an entry of a layer hides that name in the layers below."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
