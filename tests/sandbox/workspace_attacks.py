"""What an agent that is root on its own root file system tries. Also a program that tries all of it.

python -m tests.sandbox.workspace_attacks NAME [ARCHIVE]

prints a line for each attack: held, cannot be tried, or BROKEN. With an archive the root is prepared first.
"""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from envtorch.errors import ConfigurationError
from envtorch.sandbox import Workspace
from envtorch.sandbox.guest.processes import children_of
from envtorch.sandbox.prepared_roots import RootCache
from tests.sandbox.roots import HOST

PATIENCE_S = 60.0

PYTHON = {
    "ptrace": "import ctypes; l = ctypes.CDLL(None, use_errno=True); assert l.ptrace(16, 1, 0, 0) == -1",
    "bpf": "import ctypes; assert ctypes.CDLL(None).syscall(321, 0, 0, 0) == -1",
    "keyctl": "import ctypes; assert ctypes.CDLL(None).syscall(250, 0, 0, 0) == -1",
    "io_uring": "import ctypes; assert ctypes.CDLL(None).syscall(425, 1, 0) == -1",
    "setns": "import ctypes, os; assert ctypes.CDLL(None).setns(os.open('/proc/self/ns/mnt', 0), 0) == -1",
    "open by handle": "import ctypes; assert ctypes.CDLL(None).syscall(304, 3, 0, 0) == -1",
    "new mount call": "import ctypes; assert ctypes.CDLL(None).syscall(430, b'overlay', 0) == -1",
    "old mount call": "import ctypes; assert ctypes.CDLL(None).mount(b'x', b'/mnt', b'tmpfs', 0, None) == -1",
    "vsock": "import socket\ntry: socket.socket(40, socket.SOCK_STREAM)\n"
    "except OSError: pass\nelse: raise SystemExit(1)",
    "raw socket": "import socket\ntry: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)\n"
    "except OSError: pass\nelse: raise SystemExit(1)",
    "messages to itself": "import socket\nfor protocol in range(1, 24):\n"
    "    try: socket.socket(16, socket.SOCK_RAW, protocol)\n"
    "    except OSError: pass\n    else: raise SystemExit(1)",
    "limits of the init": "import resource\ntry: resource.prlimit(1, resource.RLIMIT_NOFILE, (256, 256))\n"
    "except PermissionError: pass\nelse: raise SystemExit(1)",
    "priority of the init": "import os\ntry: os.setpriority(os.PRIO_PROCESS, 1, 1)\n"
    "except PermissionError: pass\nelse: raise SystemExit(1)",
    "processors of the init": "import os\ntry: os.sched_setaffinity(1, os.sched_getaffinity(1))\n"
    "except PermissionError: pass\nelse: raise SystemExit(1)",
    "asynchronous input of all": "import ctypes, errno; l = ctypes.CDLL(None, use_errno=True)\n"
    "assert l.syscall(206, 1, ctypes.byref(ctypes.c_ulong())) == -1\n"
    "assert ctypes.get_errno() == errno.ENOSYS",
    "unshare call": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == -1",
    "trusted attribute": "import os\ntry: os.setxattr('/root', 'trusted.overlay.opaque', b'y')\n"
    "except OSError: pass\nelse: raise SystemExit(1)",
}

SHELL = {
    "mount": "mount -t tmpfs none /mnt",
    "bind mount": "mount --bind /proc/1 /mnt",
    "remount of the root": "mount -o remount,rw /",
    "unmount": "umount -l /dev/null",
    "namespace": "unshare -r true || unshare -m true",
    "block device": "mknod /root/disk b 8 0 && head -c 1 /root/disk",
    "character device": "mknod /root/mem c 1 1 && head -c 1 /root/mem",
    "kernel setting": "echo 1 > /proc/sys/kernel/printk",
    "core pattern": "echo '|/root/x' > /proc/sys/kernel/core_pattern",
    "namespaces of all": "cd /proc/sys/user && n=$(cat max_mnt_namespaces) && echo $n > max_mnt_namespaces",
    "host name by a setting": "echo other > /proc/sys/kernel/hostname",
    "network setting": "echo 1 > /proc/sys/net/ipv4/ip_forward",
    "sysrq": "echo b > /proc/sysrq-trigger",
    "clock": "date -s '2001-01-01'",
    "host name": "hostname other",
    "root of the init": "ls /proc/1/root/",
    "memory of the init": ": 5< /proc/1/mem",
    "descriptors of the init": "ls -l /proc/1/fd/",
    "higher limit": "ulimit -n 1000000",
    "raw network device": "ip link add dummy0 type dummy",
    "chroot out": "chroot /proc/1/root /bin/true",
}

OPERATION = {
    "memory of a file operation": ": 5<> /proc/$operation/mem",
    "descriptors of a file operation": "ls /proc/$operation/fd/",
    "answer of a file operation": "echo forged > /proc/$operation/fd/1",
}
"""Tried on a process that does what the owner asked for, by programs of the same user."""

NAMES = [*PYTHON, *SHELL, *OPERATION, "end of the init", "disk", "processes"]
"""Every attack, in the order in which they are tried."""

SIGNALS_TO_THE_INIT = "for number in $(seq 64); do kill -$number 1; done; kill -9 -1"
"""The last one ends the shell with all other processes."""

HELD, UNTRIED, BROKEN = "held", "cannot be tried", "BROKEN"


@contextlib.contextmanager
def operation_under_way(workspace: Workspace) -> Iterator[int]:
    """A process of the session that is to write a file, and waits for what comes: its id inside."""
    channel, path = workspace._channel, "/tmp/awaited"
    init = channel.process()
    assert init is not None
    workspace.run("true")  # its shell, too, is a child of the init
    before = set(children_of(init))
    pipes = [os.pipe() for _ in range(3)]
    theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
    try:
        what = {"kind": "write", "path": path, "directory": "/", "user": workspace._user}
        channel.expect("awaited")
        channel.tell({"op": "operate", "job": "awaited", "what": what}, theirs)
        written = f"until [ -f {path} ]; do sleep 0.01; done; rm {path}"
        assert workspace.run(written, timeout_s=PATIENCE_S).exit_code == 0
        (process,) = set(children_of(init)) - before
        status = Path(f"/proc/{process}/status").read_text()
        yield int(status.partition("\nNSpid:")[2].partition("\n")[0].split()[-1])
    finally:
        for pipe in pipes:
            for descriptor in pipe:
                os.close(descriptor)
        assert channel.await_exit("awaited", time.monotonic() + PATIENCE_S) is not None
        channel.forget("awaited")


def attack_all(workspace: Workspace) -> Iterator[tuple[str, str]]:
    """Every attack, and how it went; one whose program the root does not have cannot be tried."""
    has_python = workspace.run("command -v python3").exit_code == 0
    for name, code in PYTHON.items():
        done = workspace.execute(["python3", "-c", code]) if has_python else None
        yield name, UNTRIED if done is None else HELD if done.exit_status == 0 else BROKEN
    for name, command in SHELL.items():
        status = workspace.run(command).exit_code
        yield name, BROKEN if status == 0 else UNTRIED if status == 127 else HELD
    with operation_under_way(workspace) as process:
        for name, command in OPERATION.items():
            status = workspace.run(f"operation={process}; {command}").exit_code
            yield name, BROKEN if status == 0 else HELD
    workspace.run(SIGNALS_TO_THE_INIT)
    yield "end of the init", HELD if workspace.run("echo alive").output == "alive\n" else BROKEN
    full = workspace.run("for i in 1 2 3 4; do head -c 30000000 /dev/zero > /root/f$i; done; rm -f /root/f*")
    yield "disk", HELD if "No space left" in full.output else BROKEN
    workspace.run("for i in $(seq 500); do sleep 30 & done; wait", timeout_s=2)
    yield "processes", HELD if len(workspace.processes()) <= HOST.processes + 4 else BROKEN
    workspace.end_processes()


def main(name: str, archive: str | None = None) -> int:
    if archive is not None:
        with Path(archive).open("rb") as file:
            RootCache().add(name, file, source="an archive")
    try:
        workspace = Workspace(dataclasses.replace(HOST, root=name))
    except ConfigurationError as error:
        print(f"refused: {error}")
        return 3
    with workspace:
        found = list(attack_all(workspace))
    for attack, outcome in found:
        print(f"{attack}: {outcome}")
    return 1 if any(outcome == BROKEN for _, outcome in found) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
