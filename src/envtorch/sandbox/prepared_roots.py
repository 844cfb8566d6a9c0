"""Root file systems that were prepared once, for all sessions: a cache by digest, and names.

    <cache>/roots/trees/<digest>/root    the files, never changed
    <cache>/roots/trees/<digest>/lock    held by whoever has sessions on it
    <cache>/roots/names/<name>.json      which digest a name stands for, and how programs are started there

The folder is its owner's alone: files of an image may be set-user-id.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from envtorch.errors import ConfigurationError, OutOfResources
from envtorch.settings import cache_folder

from .root_names import HOST, is_root_name
from .root_unpacking import Unpacked, unpack

__all__ = ["PreparedRoot", "RootCache", "name_for_dockerfile"]

_FULL = (errno.ENOSPC, errno.EDQUOT)


class PreparedRoot(msgspec.Struct, frozen=True, kw_only=True):
    """A root with its name, and how programs are started on it unless somebody says otherwise."""

    name: str
    digest: str
    source: str
    """What it was made of, as a person reads it."""
    files: int = 0
    size: int = 0
    """Of all files together, in bytes."""
    made: float = 0.0
    """When, in seconds since 1970."""
    environment: dict[str, str] = {}
    directory: str | None = None
    user: str | None = None


class RootCache:
    """The prepared roots of one user of this machine."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = cache_folder() / "roots" if folder is None else folder

    # Looking.

    def all(self) -> list[PreparedRoot]:
        """All of them, in order of name."""
        found = [self._read(path) for path in sorted(self._names.glob("*.json"))]
        return [root for root in found if root is not None]

    def find(self, name: str) -> PreparedRoot | None:
        return self._read(self._name_file(name)) if is_root_name(name) else None

    def get(self, name: str) -> PreparedRoot:
        """The root of that name. Raises `ConfigurationError` that says how one is made."""
        found = self.find(name)
        if found is None:
            known = ", ".join(root.name for root in self.all()) or "none"
            raise ConfigurationError(
                f"there is no prepared root {name!r}; there are: {known}. Make one with "
                f"`envtorch rootfs from-image {name}`, or see `envtorch rootfs --help`"
            )
        return found

    def path(self, root: PreparedRoot) -> str:
        """The folder with the files."""
        return str(self._trees / root.digest / "root")

    def _read(self, path: Path) -> PreparedRoot | None:
        try:
            found = msgspec.json.decode(path.read_bytes(), type=PreparedRoot)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}. Remove it") from error
        return found if (self._trees / found.digest / "root").is_dir() else None

    # Making and removing.

    def add(
        self,
        name: str,
        archive: IO[bytes],
        *,
        source: str,
        environment: dict[str, str] | None = None,
        directory: str | None = None,
        user: str | None = None,
        on_progress: Callable[[Unpacked], None] = lambda progress: None,
    ) -> PreparedRoot:
        """Unpack an archive under its digest, and let `name` stand for it.

        Raises `ConfigurationError` for an archive that is refused, `OutOfResources` when the disk is full;
        nothing is left of it then.
        """
        _check_name(name)
        self._make_folders()
        with self._working_folder() as work:
            tree = work / "root"
            tree.mkdir(mode=0o755)
            try:
                done = unpack(archive, str(tree), keep_owners=os.geteuid() == 0, on_progress=on_progress)
            except OSError as error:
                raise _explain(error, self._folder) from error
            _require_shell(tree, name)
            self._keep(work, done.digest)
        root = PreparedRoot(
            name=name,
            digest=done.digest,
            source=source,
            files=done.files,
            size=done.size,
            made=time.time(),
            environment=environment or {},
            directory=directory,
            user=user,
        )
        before = self.find(name)
        self._write_name(root)
        if before is not None and before.digest != root.digest:
            with contextlib.suppress(ConfigurationError):  # in use: `remove` says so when asked
                self._remove_unnamed(before.digest)
        return root

    def remove(self, name: str) -> None:
        """Forget a name, and the files unless another name stands for them.

        Raises `ConfigurationError` when there is none, or a process has sessions on it.
        """
        root = self.get(name)
        others = [one for one in self.all() if one.digest == root.digest and one.name != name]
        if not others:
            self._remove_unnamed(root.digest, also=self._name_file(name))
        self._name_file(name).unlink(missing_ok=True)

    def hold(self, path: str) -> int | None:
        """A descriptor that keeps the files at `path` from being removed until it is closed; None for a
        folder that is no prepared root."""
        place = Path(path).parent
        if place.parent != self._trees:
            return None
        descriptor = os.open(place / "lock", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def _remove_unnamed(self, digest: str, *, also: Path | None = None) -> None:
        if any(one.digest == digest for one in self.all() if self._name_file(one.name) != also):
            return
        place = self._trees / digest
        with contextlib.suppress(FileNotFoundError), _locked(place / "lock", digest):
            _remove_tree(place)

    def _keep(self, work: Path, digest: str) -> None:
        (work / "lock").touch(mode=0o600)
        try:
            os.rename(work, self._trees / digest)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # The same files are there already: the working folder is removed by whoever made it.

    @contextlib.contextmanager
    def _working_folder(self) -> Iterator[Path]:
        """A folder to unpack into, removed at the end unless it was moved. Others see that it is locked."""
        with _exclusive(self._trees):
            self._remove_partial()
            made = Path(tempfile.mkdtemp(prefix="partial-", dir=self._trees))
            descriptor = _lock_folder(made)
        try:
            yield made
        finally:
            if made.exists():
                _remove_tree(made)
            os.close(descriptor)

    def _remove_partial(self) -> None:
        """Remove what killed preparations left behind."""
        for path in self._trees.glob("partial-*"):
            try:
                descriptor = _lock_folder(path)
            except OSError:  # it is being worked on, or has just been moved
                continue
            try:
                _remove_tree(path)
            finally:
                os.close(descriptor)

    def _make_folders(self) -> None:
        try:
            for folder in (self._folder, self._trees, self._names):
                folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(
                f"roots cannot be kept in {self._folder}: {error.strerror}. "
                "Set ENVTORCH_CACHE to a folder of yours"
            ) from error

    def _write_name(self, root: PreparedRoot) -> None:
        path = self._name_file(root.name)
        with tempfile.NamedTemporaryFile(dir=self._names, delete=False) as file:
            file.write(msgspec.json.encode(root))
        os.replace(file.name, path)

    @property
    def _trees(self) -> Path:
        return self._folder / "trees"

    @property
    def _names(self) -> Path:
        return self._folder / "names"

    def _name_file(self, name: str) -> Path:
        return self._names / f"{urllib.parse.quote(name, safe='')}.json"


def name_for_dockerfile(folder: Path) -> str:
    """The name of a root that was built from the Dockerfile of a folder, with the folder as its context."""
    return f"dockerfile:{_digest_of_folder(folder)}"


def _digest_of_folder(folder: Path) -> str:
    """A digest of the files, their names and whether they are programs; links are left out."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found.update(f"{path.relative_to(folder)}\0{path.stat().st_mode & 0o111}\0".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def _check_name(name: str) -> None:
    if not is_root_name(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a root: letters, digits and ._/:@+-, and not {HOST!r}"
        )


def _require_shell(tree: Path, name: str) -> None:
    """A session needs bash. Links are read as they are inside: `bin` usually is one."""
    if not any(os.path.lexists(tree / place) for place in ("bin/bash", "usr/bin/bash")):
        raise ConfigurationError(
            f"the root {name} has no /bin/bash, which sessions run their commands with: install bash into it"
        )


def _explain(error: OSError, folder: Path) -> Exception:
    if error.errno in _FULL:
        return OutOfResources(
            f"the disk of {folder} is full: free some, remove a root with `envtorch rootfs remove NAME`, "
            "or set ENVTORCH_CACHE to a folder on another disk"
        )
    return ConfigurationError(f"the archive could not be unpacked: {error}")


def _lock_folder(path: Path) -> int:
    """A descriptor of a folder that nobody else has locked. Raises `BlockingIOError` when somebody has."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Wait until nobody else is in such a block."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(path: Path, digest: str) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigurationError(
            f"sessions are running on the root {digest[:12]}: close them, or end the server that has them"
        ) from None
    finally:
        os.close(descriptor)


def _remove_tree(folder: Path) -> None:
    """Folders of a root may be closed to their own owner."""
    if os.geteuid():
        for path, folders, _ in os.walk(folder):
            for name in folders:
                place = os.path.join(path, name)
                if not os.path.islink(place):
                    os.chmod(place, 0o700)
    shutil.rmtree(folder)
