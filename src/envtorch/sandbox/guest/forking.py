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
import socket
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from os import _exit, chdir, close, dup2, get_inheritable, getcwd, kill, setsid  # `init.py` says why names
from os import fork as copy_process
from os import open as open_file
from time import sleep
from typing import NoReturn

from . import kernel, wire
from .kernel import drop_capabilities, setns
from .passage import Passage

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
    passage: Passage | None
    """The short way, if it can be taken: there is one thread, of Python's or of any other kind."""
    chance: object
    """The state of the module `random`, if there is one and it will be told of the fork."""


def survey(given: Sequence[int], workspace: str, passage: Passage | None) -> Survey:
    """`given` are descriptors that came with the request."""
    files = _shared_files(skip=set(given), home=os.path.dirname(workspace))
    if len(os.listdir("/proc/self/task")) > 1:
        passage = None
    chance = sys.modules.get("random") if passage is None else None
    state = chance.getstate() if chance is not None else None
    return Survey(files, _shared_mappings(), getcwd(), passage, state)


def fork(channel: int, doors: Sequence[int], identifier: str, workspace: str, survey: Survey) -> Born | int:
    """In the parent, a process to wait for before anything else is done, or 0; in the new sandbox, `Born`.

    `channel` is the new sandbox's socket to the owner, who gets word of it as soon as it has dropped its
    capabilities. `doors` are those to its namespaces, in the order of `NAMESPACES`: its walls stand.
    """
    hello = wire.frame(wire.encode({"type": "hello", "id": identifier}))
    born = Born(socket.SocketType(fileno=channel))
    steps = list(zip(doors, _FLAGS, strict=True))
    passage = survey.passage
    try:
        process = copy_process() if passage is None else passage.fork(steps)
        if process:
            born.channel.close()
            return process if passage is None else 0
        # From here on in the copy. What it has of the parent's, its socket for one, it must not go on with.
        try:
            if passage is None:
                _go_through(steps)
            drop_capabilities()
            setsid()  # kill(0, ...) must not reach the process group of the parent
            born.channel.sendall(hello)  # now: nobody asks for anything before we listen
            _settle_in(survey, workspace)
        except BaseException as error:
            _give_up(born.channel, identifier, error)
    finally:
        for door in doors:
            close(door)
    return born


def _go_through(steps: Sequence[tuple[int, int]]) -> None:
    """The long way, in a child; what returns is a process of the new pid namespace."""
    for door, flag in steps:
        setns(door, flag)
    if copy_process():
        _exit(0)  # a pid namespace holds only the children of whoever entered it


def _settle_in(survey: Survey, workspace: str) -> None:
    """Share nothing with the parent, and be what it was."""
    if survey.chance is not None:
        # The module reseeds itself in every child: an exact copy must not.
        sys.modules["random"].setstate(survey.chance)
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
            kill(process, 0)
        except ProcessLookupError:
            return
        except PermissionError:  # it is there, and none of ours
            pass
        sleep(0.0002)


def _give_up(channel: "socket.SocketType", identifier: str, error: BaseException) -> NoReturn:
    with contextlib.suppress(BaseException):
        message = f"the fork could not enter its namespaces: {error}"
        wire.Frames(channel).send({"type": "forked", "id": identifier, "error": message})
    _exit(1)


def _enter_folder(folder: str, workspace: str) -> None:
    try:
        chdir(folder)
    except OSError:
        chdir(workspace)


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
        inheritable = get_inheritable(file.number)
    except OSError:
        return  # a thread of the agent's has closed it since
    try:
        opened = open_file(file.path or "/dev/null", file.flags & _KEPT)
    except OSError:
        opened = open_file("/dev/null", os.O_RDWR)  # unlinked since, or never in the copy
    if file.offset:
        with contextlib.suppress(OSError):
            os.lseek(opened, file.offset, os.SEEK_SET)
    dup2(opened, file.number, inheritable)
    close(opened)


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
