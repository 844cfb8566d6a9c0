"""Merging layers of a copy-on-write root into one, and taking out of them what a grade may see.

An agent has filled these layers: folders nested thousands deep, files that pretend to be larger than the
disk, names that are no text. No link is followed, and only the folders that are looked at are open.
"""

import contextlib
import dataclasses
import enum
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import tree
from .layers import OPAQUE, is_whiteout
from .tree import LONGEST_PATH, FolderCursor

_MOST_TOLD = 1000
_MOST_LINKS = 40
_MOST_LINKED = 64 * 1024 * 1024
"""How many characters of paths are kept for files with several names; more become files of their own."""
_PROGRAMS = "bin"
_NOT_DATA = ("node_modules",)
"""Folders in / that programs look for above their own; they look for files and for names with a dot, too."""


class Zone(enum.Enum):
    """What happens to a file that the image does not have."""

    KEPT = "whatever the agent made of this place is kept"
    OPEN = "it is kept"
    CLOSED = "it is left out"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which changes are taken. Of a path that the image has, none is, unless it is at or below `kept`."""

    kept: frozenset[str]
    zones: dict[str, Zone] = field(default_factory=dict)
    """By folder, for all that is below it and has no other zone; / is closed unless it says otherwise."""
    keeps_set_id: bool = False
    """Whether programs that run as their owner stay such programs."""

    @classmethod
    def of(
        cls, kept: Sequence[str], open_folders: Sequence[str], closed_folders: Sequence[str]
    ) -> "Selection":
        zones = dict.fromkeys(open_folders, Zone.OPEN) | dict.fromkeys(closed_folders, Zone.CLOSED)
        return cls(frozenset(kept), zones)

    def is_above_kept(self, path: str) -> bool:
        return any(kept.startswith(f"{path}/") for kept in self.kept)


EVERYTHING = Selection(frozenset({"/"}), keeps_set_id=True)


@dataclass(slots=True)
class LeftOut:
    """What was not taken: at most so many paths of each kind."""

    reverted: set[str] = field(default_factory=set)
    """Paths of the image that were changed or removed."""
    hidden: set[str] = field(default_factory=set)
    """Paths that were added, without those below them."""

    def add(self, paths: set[str], path: str) -> None:
        if len(paths) < _MOST_TOLD:
            paths.add(tree.printable(path))


@dataclass(slots=True)
class _Level:
    """A folder on the way down."""

    path: str
    names: list[str]
    zone: Zone
    status: os.stat_result
    """Its owner, mode and times in the end."""
    replaced: bool
    """The agent has removed the image's folder here or above, and made another one."""


class _Followed:
    """A tree that is followed as far as it has the same folders."""

    def __init__(self, top: str) -> None:
        descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._cursor = FolderCursor(descriptor)
        finally:
            os.close(descriptor)
        self._beyond = 0

    def status(self, name: str) -> os.stat_result | None:
        if self._beyond:
            return None
        return _status(name, self._cursor.here)

    def enter(self, name: str) -> None:
        found = self.status(name)
        if found is None or not stat.S_ISDIR(found.st_mode):
            self._beyond += 1
        else:
            self._cursor.enter(name)

    def leave(self) -> None:
        if self._beyond:
            self._beyond -= 1
        else:
            self._cursor.leave()

    def close(self) -> None:
        self._cursor.close()


class _LinkedFiles:
    """Files with several names: where the first one was copied to, until all names have been seen."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], tuple[str, int]] = {}
        """The path of the copy, and how many names are still to come."""
        self._size = 0

    def add(self, status: os.stat_result, path: str) -> None:
        self._forget(status)  # a copy that could not be linked to
        self._remember(status, path, status.st_nlink - 1)

    def take(self, status: os.stat_result) -> str | None:
        """Where this file was copied to; None if it was not, or only as a file of its own."""
        path, left = self._forget(status)
        self._remember(status, path, left - 1)
        return path or None

    def _forget(self, status: os.stat_result) -> tuple[str, int]:
        path, left = self._copies.pop((status.st_dev, status.st_ino), ("", 0))
        self._size -= len(path)
        return path, left

    def _remember(self, status: os.stat_result, path: str, left: int) -> None:
        if left > 0 and self._size + len(path) <= _MOST_LINKED:
            self._copies[status.st_dev, status.st_ino] = path, left
            self._size += len(path)


def merge(layers: Sequence[str], target: str) -> None:
    """Copy several layers, the topmost first, into one that means the same."""
    for layer in reversed(layers):
        with contextlib.closing(_Merge(layer, target, EVERYTHING, None, LeftOut())) as merging:
            merging.run()
        _set_attributes(target, os.lstat(layer), None)


def extract(layers: Sequence[str], target: str, selection: Selection, image: str) -> LeftOut:
    """Copy of several layers what a selection takes, to be laid above `image`."""
    kept = selection.kept | {resolved(path, image) for path in selection.kept}
    selection = dataclasses.replace(selection, kept=kept)
    left_out = LeftOut()
    for layer in reversed(layers):
        with contextlib.closing(_Merge(layer, target, selection, image, left_out)) as merging:
            merging.run()
    for path in sorted(selection.kept):
        if _is_removed(layers, path):
            _hide_below(target, path, image)
    _set_attributes(target, os.lstat(image), None)
    return left_out


class _Merge:
    """One layer, copied into what has been merged of those below it."""

    def __init__(
        self, layer: str, target: str, selection: Selection, image: str | None, left_out: LeftOut
    ) -> None:
        self._layer, self._place = layer, target
        self._selection, self._left_out = selection, left_out
        self._source, self._target = _cursor(layer), _cursor(target)
        self._image = None if image is None else _Followed(image)
        self._linked = _LinkedFiles()

    def close(self) -> None:
        for place in (self._source, self._target, self._image):
            if place is not None:
                place.close()

    def run(self) -> None:
        zone = Zone.KEPT if "/" in self._selection.kept else self._selection.zones.get("/", Zone.CLOSED)
        levels = [_Level("", self._names(), zone, os.fstat(self._source.here), replaced=False)]
        while levels:
            level = levels[-1]
            if level.names:
                with contextlib.suppress(FileNotFoundError):  # a session may go on while it is copied
                    below = self._take(level, level.names.pop())
                    if below is not None:
                        levels.append(below)
                continue
            levels.pop()
            if levels:
                self._leave(level)

    def _names(self) -> list[str]:
        return sorted(os.listdir(self._source.here), reverse=True)

    def _take(self, level: _Level, name: str) -> _Level | None:
        """Copy an entry, or leave it out. For a folder, all cursors are inside of it then."""
        status = os.stat(name, dir_fd=self._source.here, follow_symlinks=False)
        path = f"{level.path}/{name}"
        if len(path) >= LONGEST_PATH:
            return None
        if level.zone is Zone.KEPT or path in self._selection.kept:
            return self._keep(level, name, path, status)
        is_folder = stat.S_ISDIR(status.st_mode)
        in_image = None if self._image is None else self._image.status(name)
        if in_image is not None:
            if is_folder and stat.S_ISDIR(in_image.st_mode):
                return self._pass(level, name, path, in_image)
            self._left_out.add(self._left_out.reverted, path)
            self._remove(name)
            return None
        if is_whiteout(status):
            self._remove(name)
            return None
        zone = self._selection.zones.get(path, level.zone)
        if zone is Zone.OPEN and (level.path or _is_data(name, is_folder)):
            return self._keep(level, name, path, status)
        if is_folder and self._selection.is_above_kept(path):
            return self._pass(level, name, path, status)
        self._left_out.add(self._left_out.hidden, path)
        return None

    def _pass(self, level: _Level, name: str, path: str, status: os.stat_result) -> _Level:
        """Go through a folder of which only some entries are taken: it is the image's, if that has it."""
        self._enter_source(name)
        is_replaced = _is_opaque(self._source.here)
        if is_replaced:
            self._left_out.add(self._left_out.reverted, path)
            self._remove(name)
        self._enter_target(name)
        zone = self._selection.zones.get(path) or (Zone.CLOSED if self._has_programs() else level.zone)
        return _Level(path, self._names(), zone, status, level.replaced or is_replaced)

    def _has_programs(self) -> bool:
        """Whether this folder of the image is where something was installed."""
        found = None if self._image is None else self._image.status(_PROGRAMS)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _keep(self, level: _Level, name: str, path: str, status: os.stat_result) -> _Level | None:
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            return self._keep_folder(level, name, path, status)
        self._remove(name)
        here, there = self._source.here, self._target.here
        if is_whiteout(status):
            os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=there)
            return None
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
        elif stat.S_ISREG(mode):
            if not self._link(name, status):
                tree.copy_file(name, here, there, status)
                self._linked.add(status, f"{self._place}{path}")
        elif stat.S_ISFIFO(mode):
            os.mkfifo(name, 0o600, dir_fd=there)
        else:
            return None  # a socket: whoever listened on it is not copied either
        _set_attributes(name, status, there, keeps_set_id=self._selection.keeps_set_id)
        return None

    def _link(self, name: str, status: os.stat_result) -> bool:
        first = self._linked.take(status)
        if first is not None:
            with contextlib.suppress(OSError):  # a path that is too long: then it is a file of its own
                os.link(first, name, dst_dir_fd=self._target.here)
                return True
        return False

    def _keep_folder(self, level: _Level, name: str, path: str, status: os.stat_result) -> _Level:
        self._enter_source(name)
        # Of a kept folder below one that was replaced, nothing is the image's.
        is_replaced = _is_opaque(self._source.here) or (level.zone is not Zone.KEPT and level.replaced)
        there = _status(name, self._target.here)
        if there is not None and (is_replaced or not stat.S_ISDIR(there.st_mode)):
            self._remove(name)
        self._enter_target(name)
        if is_replaced:
            os.setxattr(self._target.here, OPAQUE, b"y")
        return _Level(path, self._names(), Zone.KEPT, status, is_replaced)

    def _enter_source(self, name: str) -> None:
        self._source.enter(name)
        if self._image is not None:
            self._image.enter(name)

    def _enter_target(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._target.here)
        self._target.enter(name)

    def _leave(self, level: _Level) -> None:
        for place in (self._source, self._target, self._image):
            if place is not None:
                place.leave()
        name = os.path.basename(level.path)
        if level.zone is not Zone.KEPT:
            with contextlib.suppress(OSError):  # something below it was taken
                os.rmdir(name, dir_fd=self._target.here)
                return
        _set_attributes(name, level.status, self._target.here)

    def _remove(self, name: str) -> None:
        """Remove what lower layers have put there."""
        tree.remove(name, folder=self._target.here)


def resolved(path: str, image: str) -> str:
    """A path without the links that an image has on the way: there, `/bin/tool` is `/usr/bin/tool`."""
    found, left = "", path.strip("/").split("/")
    for _ in range(_MOST_LINKS):
        while left and not os.path.islink(f"{image}{found}/{left[0]}"):
            found = f"{found}/{left.pop(0)}"
        if not left:
            return found
        linked = os.readlink(f"{image}{found}/{left.pop(0)}")
        whole = os.path.normpath(os.path.join(found or "/", linked))
        found, left = "", [part for part in whole.split("/") if part] + left
    return path


def _is_data(name: str, is_folder: bool) -> bool:
    """Whether a new name in / is a place for data, and not one that programs look for by themselves."""
    return is_folder and not name.startswith(".") and name not in _NOT_DATA


def _cursor(folder: str) -> FolderCursor:
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return FolderCursor(top)
    finally:
        os.close(top)


def _status(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_removed(layers: Sequence[str], path: str) -> bool:
    """Whether some layers say that there is nothing at `path`, whatever is below them."""
    *folders, name = path.strip("/").split("/")
    for layer in layers:
        place, is_replaced = layer, False
        for folder in folders:
            place = f"{place}/{folder}"
            if not os.path.lexists(place):
                break
            if os.path.islink(place) or not os.path.isdir(place):
                return True
            is_replaced = is_replaced or _is_opaque(place)
        else:
            place = f"{place}/{name}"
            if os.path.lexists(place):
                return is_whiteout(os.lstat(place))
        if is_replaced:
            return True
    return False


def _hide_below(target: str, path: str, image: str) -> None:
    """Make a whiteout at `path` in a layer, below folders as the image has them."""
    *folders, name = path.strip("/").split("/")
    for folder in folders:
        target, image = f"{target}/{folder}", f"{image}/{folder}"
        if os.path.islink(image) or not os.path.isdir(image):
            return  # then it has no such path either
        if not os.path.lexists(target):
            os.mkdir(target)
            _set_attributes(target, os.lstat(image), None)
        elif os.path.islink(target) or not os.path.isdir(target):
            return  # it is below another kept path, and hidden by what the agent left there
    if not os.path.lexists(f"{target}/{name}"):
        os.mknod(f"{target}/{name}", stat.S_IFCHR | 0o600, 0)


def _is_opaque(folder: str | int) -> bool:
    try:
        return os.getxattr(folder, OPAQUE) == b"y"
    except OSError:
        return False


def _set_attributes(
    name: str, status: os.stat_result, folder: int | None, *, keeps_set_id: bool = True
) -> None:
    """Owner, mode and times of an entry."""
    mode = stat.S_IMODE(status.st_mode)
    if not keeps_set_id:
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.chown(name, status.st_uid, status.st_gid, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(name, mode, dir_fd=folder)
    times = (status.st_atime_ns, status.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
