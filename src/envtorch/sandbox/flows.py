"""The life of a sandbox as flows: opening, waiting for what its init says, closing."""

import contextlib
import os
import socket
import time
from collections.abc import Sequence

from envtorch.errors import EnvironmentFailed, OutOfResources

from . import protocol
from .core import Core
from .driver import Block, Flow, Wait, drive
from .policy import Policy
from .prebuilt import Prebuilt
from .sandbox_phases import SandboxPhase
from .zygotes import owned_resources, zygote_for

__all__ = [
    "await_copied",
    "await_event",
    "await_filled",
    "await_ready",
    "close",
    "close_all",
    "open_sandbox",
    "order",
    "place_in_zygote",
]

_OPEN_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 10.0
_ATTEMPTS = 5
_ORDER_TIMEOUT_S = 10.0
_WORTH_A_SPARE = 2
"""The second sandbox of a policy is a sign that there will be a third."""
_OUT_OF = {12: "memory", 28: "disk", 11: "processes", 24: "descriptors", 122: "disk"}


class ZygoteLost(Exception):
    """The zygote went away before the sandbox was ready."""


def open_sandbox(policy: Policy, *, home: int | None = None) -> Flow[Core]:
    """A sandbox with a fresh interpreter; its files are a copy of those below `home`, if given."""
    if home is not None:
        return (yield from _build(policy, home))
    prebuilt = _prebuilt_for(policy)
    core = yield from prebuilt.take()
    if core is not None and core.handle.is_gone():  # killed while it waited
        yield from close(core)
        core = None
    if core is None:
        core = yield from _build(policy, None)
    prebuilt.order(owned_resources().builder, lambda: drive(_build(policy, None)), least=_WORTH_A_SPARE)
    return core


_prebuilt: "dict[tuple[int, Policy], Prebuilt[Core]]" = {}


def _prebuilt_for(policy: Policy) -> "Prebuilt[Core]":
    """Where a waiting sandbox of this policy waits."""
    key = os.getpid(), policy
    if key not in _prebuilt:
        prebuilt = _prebuilt.setdefault(key, Prebuilt())
        owned_resources().endings.append(lambda: drive(_clear(key, prebuilt)))
    return _prebuilt[key]


def _clear(key: tuple[int, Policy], prebuilt: "Prebuilt[Core]") -> Flow[None]:
    _prebuilt.pop(key, None)
    waiting = yield from prebuilt.close()
    if waiting is not None:
        yield from close(waiting)


def _build(policy: Policy, home: int | None) -> Flow[Core]:
    for left in reversed(range(_ATTEMPTS)):
        core = yield from place_in_zygote(policy)
        try:
            core.zygote.spawn(core.config(adopts=False), [core.handle.far_control.fileno(), *_given(home)])
            yield from await_ready(core)
            core.handle.tell({"op": "start"}, [core.handle.far_data.fileno()])
            core.handle.far_data.close()
            return core
        except (ZygoteLost, BrokenPipeError, ConnectionError):
            yield from close(core)
            if not left:
                raise EnvironmentFailed(
                    f"{_ATTEMPTS} zygotes died while they were starting a sandbox"
                ) from None
        except BaseException:
            yield from close(core)
            raise
    raise AssertionError("unreachable")


def _given(descriptor: int | None) -> list[int]:
    return [] if descriptor is None else [descriptor]


def place_in_zygote(policy: Policy) -> Flow[Core]:
    """A core beside a living zygote; nothing has been asked of it yet."""
    zygote = yield Block(lambda: zygote_for(policy))
    return Core.new(policy, zygote)


def await_ready(core: Core, *, adopts: bool = False) -> Flow[None]:
    """Wait until the init has built its walls, put it under its limits, and refuse it if it is too weak.

    One that `adopts` will be furnished and locked only when there is something to adopt: see `await_filled`.
    """
    core.handle.far_control.close()
    yield from _await_all(core, {"born", "ready"}, adopts=adopts)
    if not adopts:
        core.refuse_if_weak()


def await_copied(core: Core) -> Flow[None]:
    """Wait until an init that adopts has its files."""
    yield from _await_all(core, {"copied"}, adopts=True)


def await_filled(core: Core) -> Flow[None]:
    """Wait until an init that adopts has given its doors away and is locked down, and refuse it if it is too
    weak."""
    yield from _await_all(core, {"doors", "filled"}, adopts=True)
    core.refuse_if_weak()


def _await_all(core: Core, missing: set[str], *, adopts: bool) -> Flow[None]:
    deadline = time.monotonic() + _OPEN_TIMEOUT_S
    while missing:
        events = core.handle.events()
        if events is None:
            raise ZygoteLost
        for said, descriptors in events:
            if said.event == "failed":
                raise _explain(said)
            if said.event == "born":
                core.handle.watch, *builders = descriptors
                # Now, while the walls are being built: the kernel takes its time over it.
                _join_group(core, later=adopts)
                core.count_in(builders)
            elif said.event == "doors":
                core.handle.doors = descriptors
                core.handle.far_control = socket.socket(fileno=core.handle.doors.pop())
            core.layers |= said.layers
            missing.discard(said.event)
        if missing and not events:
            ready = yield Wait([core.handle.control.fileno()], deadline=deadline)
            if not ready and time.monotonic() >= deadline:
                raise EnvironmentFailed(f"the sandbox was not ready after {_OPEN_TIMEOUT_S:g} s")


def _join_group(core: Core, *, later: bool) -> None:
    try:
        core.join_group(later=later)
    except OSError as error:
        raise ZygoteLost from error  # the init ended before it could be put into its group


def _explain(said: protocol.Control) -> EnvironmentFailed | OutOfResources:
    if said.message.startswith(("[Errno 28] clone3", "[Errno 28] unshare")):
        return OutOfResources(
            "the kernel makes no more namespaces: there are too many, or forks of forks too deep"
        )
    if said.errno in _OUT_OF:
        return OutOfResources(f"a sandbox ran out of {_OUT_OF[said.errno]} while it was made: {said.message}")
    return EnvironmentFailed(f"a sandbox could not be made: {said.message}")


def await_event(
    core: Core, event: str, *, job: str = "", timeout_s: float
) -> Flow[tuple[bool, Sequence[int]]]:
    """Wait for one event of the init. Answers whether it came, and the descriptors that came with it."""
    deadline = time.monotonic() + timeout_s
    while True:
        if event == "exited" and job in core.handle.exits:
            return True, ()
        events = core.handle.events()
        if events is None or (not events and core.handle.is_gone()):
            return False, ()
        found: Sequence[int] | None = None
        for said, descriptors in events:
            if said.event == event and said.job == job:
                found = descriptors
            else:
                close_all(descriptors)
        if found is not None:
            return True, found
        if time.monotonic() >= deadline:
            return False, ()
        if not events:
            yield Wait([core.handle.control.fileno(), *core.handle.watched()], deadline=deadline)


def order(core: Core, operation: str, event: str) -> Flow[bool]:
    """Have the init do something, and wait until it says that it has. False when it is gone, or cannot."""
    core.handle.tell({"op": operation})
    came, _ = yield from await_event(core, event, timeout_s=_ORDER_TIMEOUT_S)
    return came


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def close(core: Core) -> Flow[None]:
    """End the sandbox and everything in it. Its forks live on, and so does its bare init, until the last
    of them is closed; nothing is left behind then."""
    if core.closed:
        return
    core.require_own_process()
    core.move(SandboxPhase.CLOSED)
    waiting = yield from core.lineage.next_fork.close()
    if waiting is not None:
        yield from _end(waiting)
    if core.lineage.forks:
        yield from order(core, "retire", "retired")
        core.handle.data.close()
        return
    ended: Core | None = core
    while ended is not None:
        yield from _end(ended)
        ended = ended.lineage.parent
        if ended is not None:
            ended.lineage.forks -= 1
            if not ended.closed or ended.lineage.forks:
                return


def _end(core: Core) -> Flow[None]:
    handle = core.handle
    with contextlib.suppress(OSError):
        handle.control.shutdown(socket.SHUT_WR)  # the init takes this as its end, whoever else has a copy
    for channel in (handle.far_control, handle.far_data, handle.data):
        channel.close()
    if handle.watch is not None:
        ready = yield Wait([handle.watch], deadline=time.monotonic() + _CLOSE_TIMEOUT_S)
        if not ready:
            handle.kill()
            yield Wait([handle.watch], deadline=time.monotonic() + _CLOSE_TIMEOUT_S)
    if core.home is not None and not _ended_in_order(core):
        yield Block(core.end_orphans)
    if core.moves:
        yield Block(core.settle)
    if core.home is not None:
        yield Block(core.clear_home)
    core.release()


def _ended_in_order(core: Core) -> bool:
    """Whether an init has said that it has ended all other processes, as it does last."""
    found = core.handle.events() or []
    for _, descriptors in found:
        close_all(descriptors)
    return any(said.event == "ended" for said, _ in found)
