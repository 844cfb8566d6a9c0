"""Forking a live sandbox as a flow: the zygote builds the new walls, the interpreter forks into them."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Sequence

from envtorch.errors import ConfigurationError, EnvironmentFailed, OutOfResources, SessionLost, TimedOut

from . import protocol
from .core import Core, new_identifier
from .driver import Flow, Wait
from .flows import ZygoteLost, await_event, await_ready, close, open_sandbox, order, place_in_zygote
from .running import lose, speak

__all__ = ["copy_files", "fork", "freeze", "thaw"]

_ATTEMPTS = 5
_SEED_TIMEOUT_S = 10.0
_FORK_TIMEOUT_S = 30.0
_CREDENTIALS = struct.Struct("3i")
_MOST_AT_ONCE = 16
"""New walls that are built ahead of the interpreter's own forks."""


def fork(core: Core, count: int) -> Flow[list[Core]]:
    """`count` copies of a sandbox at rest: its memory copy-on-write, and a copy of its files.

    All or nothing: when one cannot be made, those already made are closed.
    """
    core.require_interpreter()
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    report = core.report()
    if not report.protects("fork"):
        raise ConfigurationError(f"nothing here would keep forks apart: {report.protections['fork']}")
    for left in reversed(range(_ATTEMPTS)):
        try:
            return (yield from _fork_once(core, count))
        except (ZygoteLost, BrokenPipeError, ConnectionError):
            if not left:
                raise EnvironmentFailed(f"{_ATTEMPTS} zygotes died while a fork was being made") from None
    raise AssertionError("unreachable")


def _fork_once(core: Core, count: int) -> Flow[list[Core]]:
    made: list[Core] = []
    seeds = yield from _seeds(core)
    try:
        while len(made) < count:
            batch: list[Core] = []
            for _ in range(min(_MOST_AT_ONCE, count - len(made))):
                slot = yield from _new_slot(core)
                batch.append(slot)
                made.append(slot)
                slot.zygote.spawn(slot.config(adopts=True), [slot.far_control.fileno(), *seeds])
            for slot in batch:
                yield from await_ready(slot, adopts=True)
                yield from _enter(core, slot)
    except BaseException:
        for slot in made:
            yield from close(slot)
        raise
    finally:
        for seed in seeds:
            os.close(seed)
    return made


def copy_files(core: Core) -> Flow[Core]:
    """A sandbox with a fresh interpreter and a copy of the files of `core`."""
    core.require_open()
    seeds = yield from _seeds(core)
    try:
        return (yield from open_sandbox(core.policy, home=seeds[0]))
    finally:
        for seed in seeds:
            os.close(seed)


def freeze(core: Core) -> Flow[Core]:
    """A copy of `core` at rest, while every process of `core` is stopped; `thaw` lets them go on.

    A fork, so that it has the agent's variables, or a copy of the files where no fork can be made. Nothing
    that the agent has left running can reach it.
    """
    frozen: Core | None = None
    if not core.lost and core.report().protects("fork"):
        with contextlib.suppress(EnvironmentFailed, OutOfResources, TimedOut, SessionLost):
            (frozen,) = yield from fork(core, 1)
    yield from order(core, "freeze", "frozen")
    if frozen is None:
        try:
            frozen = yield from copy_files(core)
        except BaseException:
            yield from thaw(core)
            raise
    frozen.functions.clear()
    yield from order(frozen, "sweep", "swept")
    return frozen


def thaw(core: Core) -> Flow[None]:
    """Let the processes of a frozen sandbox go on."""
    if not core.closed:
        yield from order(core, "thaw", "thawed")


def _seeds(core: Core) -> Flow[Sequence[int]]:
    """Descriptors of the sandbox's files and, at host grade, of its user namespace."""
    core.tell({"op": "seed"})
    came, descriptors = yield from await_event(core, "seed", timeout_s=_SEED_TIMEOUT_S)
    if not came:
        core.lost = core.lost or "its init is gone"
        core.require_interpreter()
    return descriptors


def _new_slot(core: Core) -> Flow[Core]:
    """A core for walls around nothing: an init that will adopt the forked interpreter."""
    slot = yield from place_in_zygote(core.policy)
    slot.functions = dict(core.functions)
    slot.parent = core
    core.offspring += 1
    return slot


def _enter(core: Core, slot: Core) -> Flow[None]:
    """Have the interpreter fork itself through the doors of the new sandbox."""
    identifier = new_identifier()
    frame = protocol.frame({"type": "fork", "id": identifier})
    # The descriptors travel with the first byte, the rest of the frame after it.
    slot.data.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    sent = socket.send_fds(core.data, [frame[:1]], [slot.far_data.fileno(), *slot.doors])
    slot.far_data.close()
    for door in slot.doors:
        os.close(door)
    slot.doors = []
    assert sent == 1
    said = yield from speak(core, identifier, frame[1:], protocol.Forked, timeout_s=_FORK_TIMEOUT_S)
    assert isinstance(said, protocol.Forked)
    if said.error is not None:
        raise OutOfResources(f"the interpreter could not fork: {said.error}")
    slot.adopt((yield from _await_hello(slot, identifier)))


def _await_hello(slot: Core, identifier: str) -> Flow[int]:
    """Wait for the first word of a fork. Answers with its process id as we see it, which the kernel vouches
    for: a fork has no say in it."""
    deadline = time.monotonic() + _FORK_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            data, ancillary, _, _ = slot.data.recvmsg(65536, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            yield Wait([slot.data.fileno()], deadline=deadline)
            continue
        if not data:
            break
        slot.framer.feed(data)
        for said in slot.framer:
            if isinstance(said, protocol.Hello) and said.id == identifier and ancillary:
                slot.data.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                return int(_CREDENTIALS.unpack(ancillary[0][2][: _CREDENTIALS.size])[0])
    yield from lose(slot, "it did not come to life")
    raise EnvironmentFailed("a fork did not come to life")
