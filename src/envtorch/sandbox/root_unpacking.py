"""Unpacking an archive of a root file system that nobody vouches for, and the digest of what is in it.

Nothing is written outside of the folder: every directory on the way is opened by itself and no link is
followed, so that an entry whose path leads through a link or through `..` is refused. Device nodes and
what is below /dev, /proc and /sys are left out, for every session has its own; extended attributes (file
capabilities, marks of overlayfs) too. The folder must be closed to others: as root, set-user-id bits stay.
"""

import contextlib
import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO

from envtorch.errors import ConfigurationError

__all__ = ["Unpacked", "unpack"]

_CHUNK = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN_FOLDERS = ("dev", "proc", "sys")
_LEFT_OUT = frozenset({".dockerenv"})
_MOST_IDS, NOBODY = 65_536, 65_534
_ORDINARY_BITS, _ALL_BITS = 0o777, 0o7777
_STICKY = 0o1000


@dataclass(slots=True)
class Unpacked:
    """What was unpacked. The digest is of paths, kinds, rights, owners and contents, and not of times."""

    files: int = 0
    size: int = 0
    """Of all files together, in bytes."""
    left_out: int = 0
    """Device nodes, and other entries that a session has of its own."""
    renumbered: int = 0
    """Entries whose owner is above 65,535, and which belong to nobody instead."""
    entries: dict[str, bytes] = field(default_factory=dict, repr=False)
    """What the digest is made of, by path."""

    @property
    def digest(self) -> str:
        found = hashlib.sha256()
        for path, entry in sorted(self.entries.items()):
            found.update(os.fsencode(path) + b"\0" + hashlib.sha256(entry).digest())
        return found.hexdigest()


def unpack(
    archive: IO[bytes],
    folder: str,
    *,
    keep_owners: bool,
    on_progress: Callable[[Unpacked], None] = lambda progress: None,
) -> Unpacked:
    """Unpack a tar stream, compressed or not, into an empty folder.

    `keep_owners` keeps owners and set-user-id bits, which takes root; without it all belongs to the caller.
    Raises `ConfigurationError` for what is no archive, or tries to leave the folder; `OSError`.
    """
    top = os.open(folder, _FOLDER)
    unpacker = _Unpacker(top, keep_owners)
    try:
        with tarfile.open(fileobj=archive, mode="r|*") as tar:
            for member in tar:
                unpacker.take(tar, member)
                on_progress(unpacker.done)
        unpacker.finish()
    except tarfile.TarError as error:
        raise ConfigurationError(f"this is no archive of a root file system: {error}") from error
    except UnicodeError as error:
        raise ConfigurationError(f"the archive has a name that cannot be read: {error}") from error
    finally:
        os.close(top)
    return unpacker.done


class _Unpacker:
    """Takes one entry after another."""

    def __init__(self, top: int, keep_owners: bool) -> None:
        self._top = top
        self._keep_owners = keep_owners
        self._folders: dict[str, tarfile.TarInfo] = {}
        """Their rights and times are set at the end: one may not be writable, and all change meanwhile."""
        self.done = Unpacked()

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts or parts[0] in _LEFT_OUT:
            return
        is_known = member.isreg() or member.isdir() or member.issym() or member.islnk() or member.isfifo()
        if not is_known or (parts[0] in _OWN_FOLDERS and len(parts) > 1):
            self.done.left_out += 1
            return
        if max(member.uid, member.gid) >= _MOST_IDS or min(member.uid, member.gid) < 0:
            member.uid = member.gid = NOBODY
            self.done.renumbered += 1
        path = "/".join(parts)
        with self._opened(parts[:-1], member.name) as parent:
            made = self._make(tar, member, parent, parts)
        self.done.entries[path] = made
        self.done.files += 1

    def _make(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, parts: list[str]) -> bytes:
        name, path = parts[-1], "/".join(parts)
        self._clear(parent, name, member)
        about = f"{self._mode(member):o} {member.uid} {member.gid} ".encode()
        if member.isdir():
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            self._folders[path] = member
            return b"folder " + about
        if member.islnk():
            target = _parts(member.linkname)
            if not target:
                raise ConfigurationError(f"the archive's entry {member.name} is a link to nothing")
            with self._opened(target[:-1], member.name) as source:
                os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            return self.done.entries.get("/".join(target), b"")
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
            self._own(parent, name, member)
            return b"link " + about + os.fsencode(member.linkname)
        if member.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
            self._set(parent, name, member)
            return b"fifo " + about
        return b"file " + about + self._write(tar, member, parent, name)

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> bytes:
        content = hashlib.sha256()
        source = tar.extractfile(member)
        assert source is not None  # a regular file has contents
        with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=parent), "wb") as file:
            while data := source.read(_CHUNK):
                file.write(data)
                content.update(data)
                self.done.size += len(data)
        self._set(parent, name, member)
        return content.digest()

    def finish(self) -> None:
        """Set rights and times of the folders, the deepest first."""
        for path, member in sorted(self._folders.items(), reverse=True):
            parts = path.split("/")
            with self._opened(parts[:-1], path) as parent:
                self._set(parent, parts[-1], member)

    def _clear(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        """A later entry of the same name replaces an earlier one, unless both are folders."""
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
        elif not member.isdir():
            raise ConfigurationError(f"the archive has {member.name} as a folder and as something else")

    @contextlib.contextmanager
    def _opened(self, folders: list[str], name: str) -> Iterator[int]:
        """A folder by its path, made if need be, with no link on the way."""
        here = os.dup(self._top)
        try:
            for folder in folders:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o755, dir_fd=here)
                try:
                    below = os.open(folder, _FOLDER, dir_fd=here)
                except NotADirectoryError:
                    raise ConfigurationError(
                        f"the archive's entry {name} leads through {folder}, which is no folder"
                    ) from None
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def _mode(self, member: tarfile.TarInfo) -> int:
        if self._keep_owners:
            return member.mode & _ALL_BITS
        usable = 0o700 if member.isdir() else 0o400
        return (member.mode & (_ORDINARY_BITS | (_STICKY if member.isdir() else 0))) | usable

    def _own(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        if self._keep_owners:
            os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)

    def _set(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        self._own(parent, name, member)
        os.chmod(name, self._mode(member), dir_fd=parent)  # behind the owner, which takes bits away
        os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)


def _parts(path: str) -> list[str]:
    """The names on the way. Raises `ConfigurationError` for a path that would lead up."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise ConfigurationError(f"the archive's entry {path!r} leads out of the root: it is refused")
    return parts
