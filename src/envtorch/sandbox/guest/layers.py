"""Layers of a copy-on-write root: what is hidden of the machine's own, what a session has changed, merging.

A layer is a directory as overlayfs understands it with `userxattr`: a character device 0/0 hides a name, and
the attribute `user.overlay.opaque` on a directory hides what lower layers have in it.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One entry of a layer. `kind` is file, folder, link, other, or hidden for a name that was removed."""

    path: str
    """Relative to the layer."""
    kind: str
    opaque: bool


def walk(layer: str, below: str = "") -> Iterator[LayerEntry]:
    """Every entry of a layer, folders before what is in them."""
    with os.scandir(f"{layer}/{below}") as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = f"{below}/{entry.name}".lstrip("/")
        mode = entry.stat(follow_symlinks=False)
        kind = _kind(mode)
        yield LayerEntry(path, kind, kind == "folder" and _is_opaque(entry.path))
        if kind == "folder":
            yield from walk(layer, path)


def _kind(status: os.stat_result) -> str:
    mode = status.st_mode
    if stat.S_ISCHR(mode) and status.st_rdev == 0:
        return "hidden"
    tests: Sequence[tuple[Callable[[int], bool], str]] = (
        (stat.S_ISREG, "file"),
        (stat.S_ISDIR, "folder"),
        (stat.S_ISLNK, "link"),
    )
    return next((name for test, name in tests if test(mode)), "other")


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, OPAQUE) == b"y"
    except OSError:
        return False


def is_there(place: str, path: str) -> bool:
    """Whether a path below `place` exists, with no link before its last part."""
    at = place
    *folders, name = [part for part in path.split("/") if part not in ("", ".", "..")] or [""]
    for folder in folders:
        at = f"{at}/{folder}"
        if os.path.islink(at):
            return False
    return os.path.lexists(f"{at}/{name}")


def merge(layers: Sequence[str], target: str, *, below: Sequence[str] = ("/",)) -> None:
    """Copy several layers, the topmost first, into one that means the same; or only what is at, above or
    below some paths."""
    for layer in reversed(layers):
        for entry in walk(layer):
            if _is_below(f"/{entry.path}", below):
                _merge_one(f"{layer}/{entry.path}", f"{target}/{entry.path}", entry)
            elif entry.kind == "folder" and _is_above(f"/{entry.path}", below):
                os.makedirs(f"{target}/{entry.path}", exist_ok=True)
        _copy_owner(layer, target)


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _is_above(path: str, folders: Sequence[str]) -> bool:
    return any(folder.startswith(f"{path}/") for folder in folders)


def _merge_one(source: str, place: str, entry: LayerEntry) -> None:
    is_merged = entry.kind == "folder" and not entry.opaque and os.path.isdir(place)
    if os.path.lexists(place) and not (is_merged and not os.path.islink(place)):
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)
        else:
            os.unlink(place)
    if entry.kind == "folder":
        if not os.path.isdir(place):
            os.mkdir(place)
        if entry.opaque:
            make_opaque(place)
    elif entry.kind == "hidden":
        os.mknod(place, stat.S_IFCHR | 0o600, 0)
        return
    elif entry.kind == "link":
        os.symlink(os.readlink(source), place)
    elif entry.kind == "file":
        shutil.copyfile(source, place)
    else:
        found = os.lstat(source)
        if stat.S_ISSOCK(found.st_mode):
            return  # whoever listened on it is not copied either
        os.mknod(place, found.st_mode, found.st_rdev)
    _copy_owner(source, place)


def _copy_owner(source: str, place: str) -> None:
    found = os.lstat(source)
    os.chown(place, found.st_uid, found.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(place, stat.S_IMODE(found.st_mode))
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns), follow_symlinks=False)
