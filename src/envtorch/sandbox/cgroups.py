"""Limits for a sandbox as a whole: control groups, version 2 or 1, where this process may make them."""

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Group", "Hierarchy", "find_hierarchy"]

_NEEDED = ("memory", "pids")
_FILES: Mapping[int, Mapping[str, str]] = {
    1: {"memory": "memory.limit_in_bytes", "pids": "pids.max", "oom": "memory.oom_control"},
    2: {"memory": "memory.max", "pids": "pids.max", "oom": "memory.events"},
}
_SOCKET_MEMORY = "memory.kmem.tcp.limit_in_bytes"
"""Of TCP and UDP. Version 1 does not count it before it has a limit; in version 2 it is part of the rest."""
_SOCKET_SHARE = 4
"""Version 1 counts it beside the rest: it may be one part in so many of the limit, and comes on top of it."""


@dataclass(frozen=True, slots=True)
class Group:
    """The control group of one sandbox: one folder in version 2, one per controller in version 1."""

    version: int
    folders: Mapping[str, Path]

    def add(self, process: int) -> None:
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(process))

    def oom_kills(self) -> int:
        """How many processes of the group the kernel has killed for want of memory."""
        return self._count("memory", _FILES[self.version]["oom"], "oom_kill")

    def refused_processes(self) -> int:
        """How many times a fork was refused because the group was full."""
        return self._count("pids", "pids.events", "max")

    def _count(self, controller: str, file: str, key: str) -> int:
        with contextlib.suppress(OSError, KeyError):
            for line in (self.folders[controller] / file).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
        return 0

    def remove(self) -> None:
        for folder in set(self.folders.values()):
            with contextlib.suppress(OSError):
                folder.rmdir()


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a hierarchy is mounted, and which group of it is seen there: in a container, its own."""

    place: Path
    root: str

    def find(self, group: str) -> Path:
        below = group.removeprefix(self.root.rstrip("/")) if group.startswith(self.root) else "/"
        return self.place / below.lstrip("/")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where this process may make groups. `unavailable` says why a controller cannot be used."""

    version: int
    folders: Mapping[str, Path]
    unavailable: Mapping[str, str] = field(default_factory=dict)

    def create(self, *, memory_bytes: int, processes: int) -> Group | None:
        """A new group with these limits; None where no controller can be used."""
        if not self.folders:
            return None
        name = secrets.token_hex(6)
        group = Group(self.version, {key: folder / name for key, folder in self.folders.items()})
        for folder in set(group.folders.values()):
            folder.mkdir(parents=True)
        limits = {"memory": memory_bytes, "pids": processes}
        for controller, folder in group.folders.items():
            (folder / _FILES[self.version][controller]).write_text(str(limits[controller]))
        if self.version == 1 and "memory" in group.folders:
            with contextlib.suppress(OSError):  # a kernel that counts no memory of sockets
                (group.folders["memory"] / _SOCKET_MEMORY).write_text(str(memory_bytes // _SOCKET_SHARE))
        return group

    def remove(self) -> None:
        for folder in set(self.folders.values()):
            with contextlib.suppress(OSError):
                folder.rmdir()


def find_hierarchy(
    *, membership: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/proc/self/mountinfo")
) -> Hierarchy:
    """The groups this process may make, found by making one."""
    try:
        paths = _memberships(membership.read_text())
        places = _mount_points(mounts.read_text())
    except OSError as error:
        return Hierarchy(2, {}, dict.fromkeys(_NEEDED, f"no control groups: {error.strerror}"))
    name = f"envtorch-{os.getpid()}-{secrets.token_hex(4)}"
    if "" in places and _offers_all(places[""].place):
        return _try_version_2(places[""], paths.get("", "/"), name)
    return _try_version_1(places, paths, name)


def _try_version_2(mount: Mount, group: str, name: str) -> Hierarchy:
    wanted = " ".join(f"+{controller}" for controller in _NEEDED)
    why = "no folder to make groups in"
    # A group that holds processes cannot pass controllers on, except the root; so both are tried.
    for parent in dict.fromkeys((mount.find(group), mount.place)):
        folder = parent / name
        try:
            (parent / "cgroup.subtree_control").write_text(wanted)
            folder.mkdir()
            (folder / "cgroup.subtree_control").write_text(wanted)
        except OSError as error:
            why = f"{error.strerror} in {parent}"
            with contextlib.suppress(OSError):
                folder.rmdir()
            continue
        _sweep(parent)
        return Hierarchy(2, dict.fromkeys(_NEEDED, folder))
    return Hierarchy(2, {}, dict.fromkeys(_NEEDED, why))


def _try_version_1(places: Mapping[str, Mount], paths: Mapping[str, str], name: str) -> Hierarchy:
    folders, unavailable = {}, {}
    for controller in _NEEDED:
        if controller not in places:
            unavailable[controller] = "the controller is not mounted"
            continue
        parent = places[controller].find(paths.get(controller, "/"))
        try:
            (parent / name).mkdir(exist_ok=True)  # two controllers may share a hierarchy
        except OSError as error:
            unavailable[controller] = f"{error.strerror} in {parent}"
            continue
        _sweep(parent)
        folders[controller] = parent / name
    return Hierarchy(1, folders, unavailable)


def _sweep(parent: Path) -> None:
    """Remove the groups of owners that are dead. The supervisor does it, unless it was killed too."""
    for stale in parent.glob("envtorch-*-*"):
        process = stale.name.split("-")[1]
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            for folder in (*stale.glob("*/"), stale):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _memberships(text: str) -> dict[str, str]:
    """The path of this process per controller; the key of version 2 is the empty string."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _mount_points(text: str) -> dict[str, Mount]:
    """Where each controller is mounted; the key of version 2 is the empty string."""
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        mount = Mount(Path(before.split()[4]), before.split()[3])
        if kind == "cgroup2":
            found[""] = mount
        elif kind == "cgroup":
            found |= dict.fromkeys(options.split()[-1].split(","), mount)
    return found


def _offers_all(place: Path) -> bool:
    try:
        offered = (place / "cgroup.controllers").read_text().split()
    except OSError:
        return False
    return set(_NEEDED) <= set(offered)
