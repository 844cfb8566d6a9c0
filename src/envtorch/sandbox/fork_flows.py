"""Forking a live sandbox as a flow: the zygote builds the new walls, the interpreter forks into them."""

import socket
import struct
import time
from collections.abc import Sequence

from envtorch.errors import ConfigurationError, EnvironmentFailed, OutOfResources

from . import protocol
from .core import Core, new_identifier
from .driver import Block, Flow, Wait, drive
from .flows import (
    ZygoteLost,
    await_copied,
    await_event,
    await_filled,
    await_ready,
    close,
    open_sandbox,
    order,
)
from .policy import Policy
from .running import speak
from .zygotes import owned_resources, zygote_for

__all__ = ["copy_files", "copy_moving_files", "fork"]

_ATTEMPTS = 5
_SEED_TIMEOUT_S = 10.0
_FORK_TIMEOUT_S = 10.0
"""For the interpreter to fork, once its walls stand: milliseconds, unless the agent has tampered with it."""
_CREDENTIALS = struct.Struct("3i")
_MOST_AT_ONCE = 16
"""New walls that one request asks for, and that are entered together."""


def fork(core: Core, count: int, *, timeout_s: float = _FORK_TIMEOUT_S) -> Flow[list[Core]]:
    """`count` copies of a sandbox at rest: its memory copy-on-write, and a copy of its files.

    All or nothing: when one cannot be made, those already made are closed. An interpreter that does not fork
    within `timeout_s` is ended.
    """
    core.require_interpreter()
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    report = core.report()
    if not report.protects("fork"):
        raise ConfigurationError(f"nothing here would keep forks apart: {report.protections['fork']}")
    for left in reversed(range(_ATTEMPTS)):
        try:
            return (yield from _fork_once(core, count, timeout_s))
        except (ZygoteLost, BrokenPipeError, ConnectionError):
            if not left:
                raise EnvironmentFailed(f"{_ATTEMPTS} zygotes died while a fork was being made") from None
    raise AssertionError("unreachable")


def _fork_once(core: Core, count: int, timeout_s: float) -> Flow[list[Core]]:
    made: list[Core] = []
    seeds = yield from _seeds(core)
    try:
        waiting = yield from core.lineage.next_fork.take()
        if waiting is not None and not waiting.handle.is_gone():
            made.append(waiting)
        unfinished: list[Core] = []
        while len(made) < count:
            ordered = yield from _order_slots(core.policy, seeds, min(_MOST_AT_ONCE, count - len(made)))
            made += ordered
            unfinished += ordered
        for slot in made:
            slot.lineage.parent = core
            core.lineage.forks += 1
        yield from _await_slots(unfinished)
        yield from _fill_all(core, made, seeds)
        for first in range(0, count, _MOST_AT_ONCE):
            yield from _enter_all(core, made[first : first + _MOST_AT_ONCE], timeout_s)
    except BaseException:
        for slot in made:
            yield from close(slot)
        raise
    core.lineage.next_fork.order(
        owned_resources().builder, lambda: drive(_build_slots(core.policy, seeds, 1))[0]
    )
    return made


def copy_files(core: Core) -> Flow[Core]:
    """A sandbox with a fresh interpreter and a copy of the files of `core`, as they are at one moment."""
    core.require_open()
    try:
        yield from _stand_still(core)
        return (yield from copy_moving_files(core))
    finally:
        core.handle.tell({"op": "thaw"})


def copy_moving_files(core: Core) -> Flow[Core]:
    """The same, while processes of `core` may go on to change them, unless the caller has stopped them."""
    core.require_open()
    seeds = yield from _seeds(core)
    return (yield from open_sandbox(core.policy, home=seeds[0]))


def _stand_still(core: Core) -> Flow[None]:
    """Have no process of a sandbox do anything, until a thaw. Those of one whose init is gone have ended."""
    if not (yield from order(core, "hold", "held")) and not core.handle.is_gone():
        raise EnvironmentFailed(
            "the processes of the sandbox could not be stopped, so that no exact copy of its files can be "
            "made: end those that keep starting others, and try again"
        )


def _seeds(core: Core) -> Flow[Sequence[int]]:
    """Descriptors of the sandbox's files and, at host grade, of its user and process namespace."""
    if not core.lineage.seeds:
        core.handle.tell({"op": "seed"})
        came, descriptors = yield from await_event(core, "seed", timeout_s=_SEED_TIMEOUT_S)
        if not came:
            core.lose(core.why_lost or "its init is gone")
            core.require_interpreter()
        core.lineage.seeds = list(descriptors)
    return core.lineage.seeds


def _build_slots(policy: Policy, seeds: Sequence[int], count: int) -> Flow[list[Core]]:
    """Walls around nothing: inits inside the namespaces of a sandbox, which will adopt forks of it."""
    slots = yield from _order_slots(policy, seeds, count)
    try:
        yield from _await_slots(slots)
    except BaseException:
        for slot in slots:
            yield from close(slot)
        raise
    return slots


def _order_slots(policy: Policy, seeds: Sequence[int], count: int) -> Flow[list[Core]]:
    """Have such walls built, and do not wait for them."""
    zygote = yield Block(lambda: zygote_for(policy))
    slots = [Core.new(policy, zygote) for _ in range(count)]
    try:
        controls = [slot.handle.far_control.fileno() for slot in slots]
        zygote.spawn(slots[0].config(adopts=True), [*controls, *seeds[1:]])
    except BaseException:
        for slot in slots:
            yield from close(slot)
        raise
    return slots


def _await_slots(slots: Sequence[Core]) -> Flow[None]:
    """Wait until the walls stand, each in its control group: files copied from then on count as its own."""
    for slot in slots:
        yield from await_ready(slot, adopts=True)
    for slot in slots:
        yield Block(slot.settle)


def _fill_all(core: Core, slots: Sequence[Core], seeds: Sequence[int]) -> Flow[None]:
    """Copy the files into every slot, while no process of the sandbox changes them: the copies are alike."""
    try:
        yield from _stand_still(core)
        for slot in slots:
            slot.handle.tell({"op": "fill"}, seeds[:1])
        for slot in slots:
            yield from await_copied(slot)
    finally:
        core.handle.tell({"op": "thaw"})


def _enter_all(core: Core, slots: Sequence[Core], timeout_s: float) -> Flow[None]:
    """Have the interpreter fork itself into every slot.

    Each stage is begun for all before any is waited for: the interpreter forks into one slot while the next
    ones lock themselves down.
    """
    for slot in slots:
        slot.handle.tell({"op": "finish"})
    requests = []
    for slot in slots:
        yield from await_filled(slot)
        requests.append(_send_out(core, slot))
    for slot, identifier in zip(slots, requests, strict=True):
        said = yield from speak(core, identifier, b"", protocol.Forked, timeout_s=timeout_s)
        assert isinstance(said, protocol.Forked)
        if said.error is not None:
            raise OutOfResources(f"the interpreter could not fork: {said.error}")
        if slot.adopt((yield from _await_hello(slot, identifier, timeout_s))):
            # Before the fork runs anything: a process that it starts has the mark that it has itself then.
            yield from await_event(core, "watched", timeout_s=timeout_s)


def _send_out(core: Core, slot: Core) -> str:
    """Ask the interpreter for a fork, and give it the doors to go through. The name of the request."""
    slot.functions = dict(core.functions)
    identifier = new_identifier()
    frame = protocol.frame({"type": "fork", "id": identifier})
    slot.handle.data.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    sent = socket.send_fds(core.handle.data, [frame], [slot.handle.far_data.fileno(), *slot.handle.doors])
    assert sent == len(frame), "an interpreter at rest has read all that it was sent"
    slot.handle.far_data.close()
    slot.handle.close_doors()
    return identifier


def _await_hello(slot: Core, identifier: str, timeout_s: float) -> Flow[int]:
    """Wait for the first word of a fork. Answers with its process id as we see it, which the kernel vouches
    for: a fork has no say in it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        yield Wait([slot.handle.data.fileno()], deadline=deadline)
        try:
            data, ancillary, _, _ = slot.handle.data.recvmsg(65536, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            continue
        if not data:
            break
        slot.handle.reader.feed(data)
        try:
            said = slot.handle.reader.next(identifier, (protocol.GuestHello, protocol.Forked))
        except protocol.Nonsense:
            break
        if isinstance(said, protocol.Forked):
            raise OutOfResources(said.error or "the fork could not be made")
        if said is not None and ancillary:
            slot.handle.data.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
            return int(_CREDENTIALS.unpack(ancillary[0][2][: _CREDENTIALS.size])[0])
    raise EnvironmentFailed("a fork did not come to life")
