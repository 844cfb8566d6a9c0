"""Walking, copying and removing a workspace. No link is followed, and no depth is too deep.

An agent makes folders nested thousands deep, and changes them meanwhile. So at any time only the folder that
is looked at is open, and the way up is taken only to the folder that we came from.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

_CHUNK = 1 << 24
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LONGEST_PATH = 4096
"""The kernel takes no longer one."""

Identity = tuple[int, int]


def _identity(descriptor: int) -> Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


class FolderCursor:
    """One open folder of a tree, and the way back to the top."""

    def __init__(self, top: int) -> None:
        # Opened anew, not duplicated: a duplicate shares its reading position with every process that has
        # been given `top`, and forks that are made together read the same folder at the same time.
        self.here = os.open(".", _FOLDER, dir_fd=top)
        self._above: list[Identity] = []

    def enter(self, name: str) -> None:
        """Go into a folder of this one. Raises `OSError`, and stays here then."""
        below = os.open(name, _FOLDER, dir_fd=self.here)
        self._above.append(_identity(self.here))
        os.close(self.here)
        self.here = below

    def leave(self) -> None:
        """Go back up. Raises `OSError` when this folder has been moved meanwhile."""
        above = os.open("..", _FOLDER, dir_fd=self.here)
        os.close(self.here)
        self.here = above
        if _identity(above) != self._above.pop():
            raise OSError(116, "a folder was moved while it was read")

    def close(self) -> None:
        os.close(self.here)


@dataclass(slots=True)
class _Level:
    """A folder on the way down: what of it has still to be looked at."""

    path: str
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One name in the tree; `folder` is a descriptor of the folder that has it, open until the next entry."""

    path: str
    name: str
    folder: int
    status: os.stat_result


def kind_of(status: os.stat_result) -> str:
    """What an owner is told of an entry: link, folder or file."""
    mode = status.st_mode
    return "link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "file"


def printable(name: str) -> str:
    """A name as text; bytes that are none are replaced."""
    return os.fsencode(name).decode(errors="replace")


def walk(top: int, *, depth: int | None = None) -> Iterator[TreeEntry]:
    """Everything below the folder `top` (a descriptor), a folder before what is in it, in order of name.

    With `depth`, only that many levels.
    """
    cursor = FolderCursor(top)
    try:
        levels = [_Level("", sorted(os.listdir(cursor.here), reverse=True))]
        while levels:
            level = levels[-1]
            if not level.names:
                levels.pop()
                if levels:
                    cursor.leave()
                continue
            name = level.names.pop()
            try:
                status = os.stat(name, dir_fd=cursor.here, follow_symlinks=False)
            except FileNotFoundError:
                continue
            path = f"{level.path}{name}"
            yield TreeEntry(path, name, cursor.here, status)
            goes_on = depth is None or len(levels) < depth
            if goes_on and stat.S_ISDIR(status.st_mode) and len(path) < LONGEST_PATH:
                below = _enter_and_list(cursor, name)
                if below is not None:
                    levels.append(_Level(f"{path}/", sorted(below, reverse=True)))
    finally:
        cursor.close()


def _enter_and_list(cursor: FolderCursor, name: str) -> list[str] | None:
    """The names in a folder, which the cursor is in then; None, and it stays, if that is not allowed."""
    with contextlib.suppress(OSError):
        cursor.enter(name)
        try:
            return os.listdir(cursor.here)
        except OSError:
            cursor.leave()
    return None


def copy(source: int, target: str) -> None:
    """Copy what is below the directory `source` (a descriptor) into the existing folder `target`.

    The original may change meanwhile, for agents leave processes behind: what vanishes is left out.
    """
    destination = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _Copy(source, destination).copy_folder()
    finally:
        os.close(destination)


class _Copy:
    """Two cursors that go the same way, one through the original and one through the copy."""

    def __init__(self, source: int, target: int) -> None:
        self._source = FolderCursor(source)
        self._target = FolderCursor(target)
        self._seen: dict[Identity, str] = {}
        """Files with several names, and the path of the first one."""

    def copy_folder(self) -> None:
        try:
            levels = [self._names("")]
            folders: list[tuple[str, int]] = []
            while levels:
                if not levels[-1].names:
                    levels.pop()
                    if levels:
                        self._source.leave()
                        self._target.leave()
                        done, mode = folders.pop()
                        os.chmod(done, mode, dir_fd=self._target.here)
                    continue
                path = levels[-1].path
                name = levels[-1].names.pop()
                with contextlib.suppress(FileNotFoundError):
                    entered = self._copy_entry(name)
                    if entered is not None:
                        levels.append(self._names(f"{path}{name}/"))
                        folders.append((name, entered))
        finally:
            self._source.close()
            self._target.close()

    def _names(self, path: str) -> _Level:
        return _Level(path, os.listdir(self._source.here))

    def _copy_entry(self, name: str) -> int | None:
        """Copy one entry. For a folder, both cursors are inside of it then, and its mode is the answer."""
        source, target = self._source.here, self._target.here
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            return self._enter(name, stat.S_IMODE(mode))
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISREG(mode):
            self._copy_file(name, status)
        elif stat.S_ISFIFO(mode):
            os.mkfifo(name, stat.S_IMODE(mode), dir_fd=target)
        return None

    def _enter(self, name: str, mode: int) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._target.here)
        self._source.enter(name)
        self._target.enter(name)
        return mode

    def _copy_file(self, name: str, status: os.stat_result) -> None:
        identity = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and identity in self._seen:
            with contextlib.suppress(OSError):  # a path that is too long: then it is a file of its own
                os.link(self._seen[identity], name, dst_dir_fd=self._target.here)
                return
        copy_file(name, self._source.here, self._target.here, status)
        if status.st_nlink > 1:
            self._seen[identity] = f"{os.readlink(f'/proc/self/fd/{self._target.here}')}/{name}"


def copy_file(name: str, source: int, target: int, status: os.stat_result) -> None:
    """Copy a regular file from one folder to another, with its holes."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    original = os.open(name, flags, dir_fd=source)
    try:
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
        try:
            _copy_data(original, made, status.st_size)
            os.fchmod(made, stat.S_IMODE(status.st_mode))
            os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(made)
    finally:
        os.close(original)


def _copy_data(original: int, made: int, size: int) -> None:
    """Copy what is there and leave holes as holes: a sparse file may pretend to be larger than the disk."""
    position = 0
    while position < size:
        try:
            position = os.lseek(original, position, os.SEEK_DATA)
            end = os.lseek(original, position, os.SEEK_HOLE)
        except OSError:
            break  # nothing but a hole from here on, or it has become shorter meanwhile
        os.lseek(original, position, os.SEEK_SET)
        os.lseek(made, position, os.SEEK_SET)
        while position < end:
            copied = os.sendfile(made, original, None, min(_CHUNK, end - position))
            if not copied:
                return
            position += copied
    os.ftruncate(made, size)


def remove(name: str, *, folder: int | None = None) -> None:
    """Remove a file, or a folder and what is below it, as far as that can be done."""
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            return
        top = os.open(name, _FOLDER, dir_fd=folder)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=folder)


def _empty(top: int) -> None:
    cursor = FolderCursor(top)
    try:
        way: list[str] = []
        left_over: set[Identity] = set()
        while True:
            below = _remove_files(cursor.here, left_over)
            if below is not None:
                os.chmod(below, 0o700, dir_fd=cursor.here)  # a folder that the agent has closed
                cursor.enter(below)
                way.append(below)
                continue
            if not way:
                return
            here = _identity(cursor.here)
            cursor.leave()
            try:
                os.rmdir(way.pop(), dir_fd=cursor.here)
            except OSError:
                left_over.add(here)  # somebody is still writing to it
    finally:
        cursor.close()


def _remove_files(folder: int, left_over: set[Identity]) -> str | None:
    """Remove all but folders; answers with the name of a folder that has not been emptied yet."""
    below = None
    for name in os.listdir(folder):
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=folder)
            elif (status.st_dev, status.st_ino) not in left_over:
                below = name
        except OSError:
            continue
    return below
