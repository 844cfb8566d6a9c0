"""The private root: a read-only view of the interpreter and its packages, and nothing else."""

import os
from collections.abc import Mapping, Sequence

from . import kernel

AGENT_ID = 1000
"""The user and group id an agent sees for itself. Outside it is never root."""

HOME = "/home/agent"
"""Where each sandbox mounts its own tmpfs. Landlock grants writing below its parent, `/home`: a rule on
a directory of the shared root still holds for a fork, which has a tmpfs of its own at the same place."""

WORKSPACE = f"{HOME}/workspace"
TEMPORARY = f"{HOME}/tmp"  # noqa: S108  a tmpfs of the sandbox's own
OUTPUT = "/home/output"
"""Where each sandbox mounts a small tmpfs for what it prints, so that a full disk still lets it speak."""

GUEST = "/opt/envtorch"

_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ssl",
    "/etc/ld.so.cache",
    "/etc/alternatives",
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_ETC = {
    "passwd": f"agent:x:{AGENT_ID}:{AGENT_ID}:agent:{HOME}:/bin/sh\n",
    "group": f"agent:x:{AGENT_ID}:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_LINKS = {
    "tmp": TEMPORARY,
    "workspace": WORKSPACE,
    "var/tmp": TEMPORARY,
    "dev/shm": f"{HOME}/shm",
    "dev/fd": "/proc/self/fd",
    "dev/stdin": "/proc/self/fd/0",
    "dev/stdout": "/proc/self/fd/1",
    "dev/stderr": "/proc/self/fd/2",
}


def system_paths(prefixes: Sequence[str], readable: Sequence[str]) -> list[str]:
    """What every sandbox may read: the system's programs, the interpreter, and what the policy adds."""
    wanted = [*_SYSTEM, *prefixes, *readable]
    return [path for path in dict.fromkeys(wanted) if os.path.lexists(path)]


def write_id_maps(inside_user: int, inside_group: int, outside_user: int, outside_group: int) -> None:
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside_user} {outside_user} 1"),
        ("gid_map", f"{inside_group} {outside_group} 1"),
    ):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def build(paths: Sequence[str], guest: str) -> None:
    """Make a root out of read-only binds of `paths`, in this mount namespace only, and move into it."""
    kernel.mount(None, "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    binds = {path: path for path in paths} | {guest: f"{GUEST}/guest"}
    # Opened before the new root covers anything: a virtual environment may well live below /tmp.
    sources = {path: os.open(path, os.O_PATH) for path in binds if not os.path.islink(path)}
    links = {path: os.readlink(path) for path in binds if path not in sources}
    devices = {
        name: os.open(f"/dev/{name}", os.O_PATH) for name in _DEVICES if os.path.exists(f"/dev/{name}")
    }
    process_table = os.open("/proc", os.O_PATH)
    root = "/tmp"  # noqa: S108  any directory will do: only this mount namespace sees it covered
    kernel.mount("tmpfs", root, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, "size=4m,mode=755")
    os.makedirs(f"{root}{HOME}")
    os.makedirs(f"{root}{OUTPUT}")
    for folder in ("proc", "dev", "etc", "var", "root"):
        os.mkdir(f"{root}/{folder}")
    _bind_all(root, binds, sources, links)
    _furnish(root, devices)
    kernel.make_read_only(root)
    # Bound last, and writable: id maps are written through it. Each sandbox covers it with its own.
    kernel.mount(f"/proc/self/fd/{process_table}", f"{root}/proc", None, kernel.BIND | kernel.RECURSIVE)
    for descriptor in (*sources.values(), *devices.values(), process_table):
        os.close(descriptor)
    kernel.pivot_root(root)


def _bind_all(
    root: str, binds: Mapping[str, str], sources: Mapping[str, int], links: Mapping[str, str]
) -> None:
    for source, target in sorted(binds.items(), key=lambda pair: pair[1]):
        place = root + target
        if os.path.lexists(place):
            continue  # below an earlier bind, as a prefix of /usr is
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if source in links:
            os.symlink(links[source], place)
            continue
        origin = f"/proc/self/fd/{sources[source]}"
        if os.path.isdir(origin):
            os.mkdir(place)
        else:
            _touch(place)
        kernel.mount(origin, place, None, kernel.BIND | kernel.RECURSIVE)


def _furnish(root: str, devices: Mapping[str, int]) -> None:
    for name, text in _ETC.items():
        with open(f"{root}/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    for name, descriptor in devices.items():
        _touch(f"{root}/dev/{name}")
        kernel.mount(f"/proc/self/fd/{descriptor}", f"{root}/dev/{name}", None, kernel.BIND)
    for name, target in _LINKS.items():
        if not os.path.lexists(f"{root}/{name}"):
            os.symlink(target, f"{root}/{name}")


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
