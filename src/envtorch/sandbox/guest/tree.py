"""Copying a workspace, contents, modes, links and hard links, and removing one. No link is followed."""

import contextlib
import os
import stat

_CHUNK = 1 << 24


def copy(source: int, target: str) -> None:
    """Copy what is below the directory `source` (a descriptor) into the existing folder `target`.

    The original may change meanwhile, for agents leave processes behind: what vanishes is left out.
    """
    destination = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _copy_folder(source, destination, {})
    finally:
        os.close(destination)


def _copy_folder(source: int, target: int, seen: dict[tuple[int, int], str]) -> None:
    for name in os.listdir(source):
        with contextlib.suppress(FileNotFoundError):
            _copy_entry(name, source, target, seen)


def _copy_entry(name: str, source: int, target: int, seen: dict[tuple[int, int], str]) -> None:
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    elif stat.S_ISDIR(mode):
        _copy_subfolder(name, source, target, mode, seen)
    elif stat.S_ISREG(mode):
        identity = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and identity in seen:
            os.link(seen[identity], name, dst_dir_fd=target)
            return
        _copy_file(name, source, target, status)
        if status.st_nlink > 1:
            seen[identity] = f"{os.readlink(f'/proc/self/fd/{target}')}/{name}"
    elif stat.S_ISFIFO(mode):
        os.mkfifo(name, stat.S_IMODE(mode), dir_fd=target)


def _copy_subfolder(name: str, source: int, target: int, mode: int, seen: dict[tuple[int, int], str]) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=target)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    inside = os.open(name, flags, dir_fd=source)
    try:
        outside = os.open(name, flags, dir_fd=target)
        try:
            _copy_folder(inside, outside, seen)
            os.fchmod(outside, stat.S_IMODE(mode))
        finally:
            os.close(outside)
    finally:
        os.close(inside)


def _copy_file(name: str, source: int, target: int, status: os.stat_result) -> None:
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


def remove(folder: str) -> None:
    """Remove a folder and what is below it, as far as that can be done."""
    with contextlib.suppress(OSError, RecursionError):
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                remove(entry.path)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        os.rmdir(folder)
