"""What a writable root needs besides its files: devices, a process table, a host name, the loopback."""

import contextlib
import fcntl
import os
import socket
import struct

from . import kernel, mounts

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_FOLDERS = {"dev": 0o755, "proc": 0o555, "tmp": 0o1777, "run": 0o755, "root": 0o700}
_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "acpi", "fs", "scsi", "asound", "mtrr")
"""Below /proc: what is the machine's or the user namespace's and not a process's."""
_SET_FLAGS, _UP = 0x8914, 1
MOVED = ("dev", "proc")
"""What follows a session from one root to the next."""


def enter(tree: int, *, hostname: str, names_host: bool, shared_memory_bytes: int) -> None:
    """As the first process of new namespaces: make a detached tree the root, and furnish it. Files in it tell
    the host's name only with `names_host`."""
    place = "/tmp"  # noqa: S108  any directory will do: only this mount namespace sees it covered
    kernel.mount(None, "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    mounts.attach(tree, place)
    for name, mode in _FOLDERS.items():
        if not os.path.lexists(f"{place}/{name}"):  # what an agent has put there instead is its own
            os.mkdir(f"{place}/{name}")
            os.chmod(f"{place}/{name}", mode)
    _make_devices(f"{place}/dev", shared_memory_bytes)
    flags = kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_EXEC
    kernel.mount("proc", f"{place}/proc", "proc", flags)
    _protect_settings(f"{place}/proc")
    kernel.set_hostname(hostname)
    if names_host:
        _name_host(place, hostname)
    kernel.pivot_root(place)


def reenter(tree: int) -> None:
    """Make another tree the root of every process here; devices and the process table move along.

    It is attached on top of the present root, and reached by its descriptor: every directory belongs to the
    agent, which may have removed it. When this fails, the root is as it was.
    """
    mounts.attach(tree, "/")
    os.fchdir(tree)
    moved: list[str] = []
    try:
        for name in MOVED:
            mounts.move(f"/{name}", name)
            moved.append(name)
        kernel.pivot_root(".")
    except OSError:
        for name in moved:
            mounts.move(name, f"/{name}")
        mounts.unmount(".")
        os.chdir("/")
        raise


def bring_loopback_up() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14s", b"lo", _UP, b""))


def listen_on_loopback(port: int) -> int:
    """A descriptor of a listening socket, which works in this network namespace wherever it is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener.detach()


def _protect_settings(place: str) -> None:
    """Make what changes the kernel's settings read-only. All sessions of a store share a user namespace, and
    root in it may write to /proc/sys/user: how many namespaces, for one, there may be for all of them."""
    for name in _SETTINGS:
        path = f"{place}/{name}"
        if os.path.exists(path):  # not every kernel has all of them
            kernel.mount(path, path, None, kernel.BIND | kernel.RECURSIVE)
            kernel.make_read_only(path)


def _make_devices(place: str, shared_memory_bytes: int) -> None:
    kernel.mount("tmpfs", place, "tmpfs", kernel.NO_SETUID, "mode=755,size=64k,nr_inodes=64")
    for name in _DEVICES:
        os.close(os.open(f"{place}/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        kernel.mount(f"/dev/{name}", f"{place}/{name}", None, kernel.BIND)
    for name in ("pts", "shm"):
        os.mkdir(f"{place}/{name}")
    flags = kernel.NO_SETUID | kernel.NO_EXEC
    kernel.mount("devpts", f"{place}/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=620,max=64")
    options = f"mode=1777,size={shared_memory_bytes}"
    kernel.mount("tmpfs", f"{place}/shm", "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, options)
    for name, target in _LINKS.items():
        os.symlink(target, f"{place}/{name}")


def _name_host(place: str, hostname: str) -> None:
    """`sudo` and others look the machine's own name up. A link at /etc would lead out of the new root."""
    etc = f"{place}/etc"
    if os.path.islink(etc) or (os.path.exists(etc) and not os.path.isdir(etc)):
        return
    os.makedirs(etc, exist_ok=True)
    texts = {
        "hosts": f"127.0.0.1 localhost {hostname}\n::1 localhost {hostname}\n",
        "hostname": f"{hostname}\n",
        "resolv.conf": "",
    }
    for name, text in texts.items():
        path = f"{etc}/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            continue
        if not os.path.isfile(path) or os.path.islink(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # a link would lead out of the root, and a FIFO would wait for a reader
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
