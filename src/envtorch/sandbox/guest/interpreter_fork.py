"""Forking the live interpreter into the namespaces of a new sandbox.

The new sandbox's namespaces, tmpfs and init are made by the zygote beforehand, and descriptors of the
namespaces arrive here. `setns` into a user namespace that is a child of our own and belongs to our user
needs no capability; inside it we have them all, for the moment it takes to enter the other five and to
drop every one again. The seccomp filter stays on throughout.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from . import guest_wire as wire
from . import kernel

_SHARED = b"s "
"""How the permissions of shared memory end; a path with the like in it does no harm."""
_READ_ONLY_FILES = b"/usr/"
"""Files that nobody in the sandbox can change: what is mapped of them, libc's tables, may stay shared."""
_LARGEST_COPY = 1 << 30
_KEPT = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY
_BUILDER = 2
"""The first process that the init of a sandbox starts."""
_PATIENCE = 250
_FLAGS = tuple(kernel.NAMESPACES.values())


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A descriptor of the agent's that must not stay shared with the parent."""

    number: int
    path: str | None
    flags: int
    offset: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """Memory that is shared with other processes."""

    start: int
    size: int
    protection: bytes

    def make_private(self) -> None:
        flags = sum(bit for bit, letter in ((1, b"r"), (2, b"w"), (4, b"x")) if letter in self.protection)
        kernel.private_copy(self.start, ctypes.string_at(self.start, self.size), flags)


@dataclass(frozen=True, slots=True)
class Born:
    """What `fork` returns in the new sandbox: its socket to the owner."""

    channel: "socket.SocketType"


@dataclass(frozen=True, slots=True)
class Survey:
    """What a fork must know of the process that it is a copy of.

    Looked up before the fork: after it, every page that is touched must be copied first.
    """

    files: list[OpenFile]
    mappings: list[Mapping]
    folder: str
    random_state: object
    """The state of the module `random`, if it is loaded: it reseeds itself in every forked process."""


def survey(given: Sequence[int], workspace: str) -> Survey:
    """`given` are descriptors that came with the request."""
    files = _shared_files(skip=set(given), home=os.path.dirname(workspace))
    random = sys.modules.get("random")
    state = random.getstate() if random is not None else None
    return Survey(files, _shared_mappings(), os.getcwd(), state)


def fork(channel: int, doors: Sequence[int], identifier: str, workspace: str, survey: Survey) -> Born | None:
    """None in the parent; in the new sandbox, `Born`.

    `channel` is the new sandbox's socket to the owner, which gets a message as soon as the copy has dropped
    its capabilities. `doors` are descriptors of the new namespaces, in the order of `NAMESPACES`.

    It takes two forks: entering a pid namespace takes effect for the children of the process that enters,
    and a process that has entered another user namespace cannot come back.
    """
    born = Born(socket.SocketType(fileno=channel))
    try:
        with _children_unnoticed():
            process = os.fork()
            if process:
                born.channel.close()
                os.waitpid(process, 0)
                return None
            try:
                for door, flag in zip(doors, _FLAGS, strict=True):
                    kernel.setns(door, flag)
                if os.fork():
                    os._exit(0)
            except BaseException as error:
                _give_up(born.channel, identifier, error)
        # From here on in the copy. It must not go on with what is the parent's, its socket for one.
        try:
            kernel.drop_capabilities()
            os.setsid()  # kill(0, ...) must not reach the process group of the parent
            born.channel.sendall(wire.frame("hello", identifier, {}))
            _settle_in(survey, workspace)
        except BaseException as error:
            _give_up(born.channel, identifier, error)
    finally:
        for door in doors:
            os.close(door)
    return born


@contextlib.contextmanager
def _children_unnoticed() -> Iterator[None]:
    """Keep the agent's handler of SIGCHLD, if it has one, from hearing of a child of ours."""
    handler: Any = signal.getsignal(signal.SIGCHLD)
    if handler in (signal.SIG_DFL, None):  # None: set by a library in C
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)


def _settle_in(survey: Survey, workspace: str) -> None:
    """Share nothing with the parent, and be what it was."""
    if survey.random_state is not None:
        sys.modules["random"].setstate(survey.random_state)
    _enter_folder(survey.folder, workspace)
    for file in survey.files:
        _detach(file)
    for mapping in survey.mappings:
        mapping.make_private()
    _await_the_end_of(_BUILDER)


def _await_the_end_of(process: int) -> None:
    """Whoever built the walls has nothing left to do but to end. The agent shall not meet it."""
    for _ in range(_PATIENCE):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        except PermissionError:  # it is there, and none of ours
            pass
        time.sleep(0.0002)


def _give_up(channel: "socket.SocketType", identifier: str, error: BaseException) -> NoReturn:
    with contextlib.suppress(BaseException):
        message = f"the fork could not enter its namespaces: {error}"
        channel.sendall(wire.frame("forked", identifier, {"error": message}))
    os._exit(1)


def _enter_folder(folder: str, workspace: str) -> None:
    try:
        os.chdir(folder)
    except OSError:
        os.chdir(workspace)


def _shared_files(skip: set[int], home: str) -> list[OpenFile]:
    """Descriptors to detach after the fork: files of the workspace, pipes and sockets."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number in skip or number < 3:
            continue
        with contextlib.suppress(OSError):
            mode = os.fstat(number).st_mode
            path = os.readlink(f"/proc/self/fd/{name}")
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                found.append(OpenFile(number, None, os.O_RDWR, 0))
            elif path.startswith(f"{home}/"):
                offset = os.lseek(number, 0, os.SEEK_CUR) if stat.S_ISREG(mode) else 0
                found.append(OpenFile(number, path, fcntl.fcntl(number, fcntl.F_GETFL), offset))
    return found


def _detach(file: OpenFile) -> None:
    """Make the descriptor one of the new sandbox: the same file of its own workspace, or a dead end."""
    try:
        inheritable = os.get_inheritable(file.number)
    except OSError:
        return  # a thread of the agent's has closed it since
    try:
        opened = os.open(file.path or "/dev/null", file.flags & _KEPT)
    except OSError:
        opened = os.open("/dev/null", os.O_RDWR)  # unlinked since, or never in the copy
    if file.offset:
        with contextlib.suppress(OSError):
            os.lseek(opened, file.offset, os.SEEK_SET)
    os.dup2(opened, file.number, inheritable)
    os.close(opened)


def _shared_mappings() -> list[Mapping]:
    """Shared memory, which a fork would go on sharing with its parent."""
    with open("/proc/self/maps", "rb", buffering=0) as file:
        table = file.readall()
    found = []
    end_of_line = 0
    while (place := table.find(_SHARED, end_of_line)) >= 0:  # of hundreds of lines, few are of interest
        start_of_line, end_of_line = table.rfind(b"\n", 0, place) + 1, table.find(b"\n", place)
        line = table[start_of_line:end_of_line]
        addresses, protection, _, _, _, *path = line.split(maxsplit=5)
        constant = protection[1:2] == b"-" and bool(path) and path[0].startswith(_READ_ONLY_FILES)
        if protection[3:] == b"s" and protection[:1] == b"r" and not constant:
            start, end = (int(address, 16) for address in addresses.split(b"-"))
            if end - start <= _LARGEST_COPY:
                found.append(Mapping(start, end - start, protection))
    return found
