"""The owner's side of zygotes: started when first needed, shared, and replaced when they die."""

import atexit
import base64
import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envtorch.errors import ConfigurationError, EnvironmentFailed

from . import protocol
from .cgroups import Hierarchy, find_hierarchy
from .filter import AGENT, AGENT_WITHOUT_SIGNALS, PRIVATE_ROOT, SHARED_ROOT, compile_filter
from .guest.root import system_paths
from .monitor import Monitor
from .policy import Policy

__all__ = ["OwnedResources", "Zygote", "owned_resources", "shutdown", "zygote_for"]

logger = logging.getLogger(__name__)

_GUEST = Path(__file__).parent / "guest"
_SUPERVISOR = (
    "import sys; sys.path.insert(0, sys.argv[1]); from guest.supervisor import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)
_START_TIMEOUT_S = 120.0
NOBODY = 65534


@dataclass(slots=True)
class OwnedResources:
    """What this process owns outside its sandboxes, and must leave clean."""

    groups: Hierarchy = field(default_factory=find_hierarchy)
    folder: str | None = None
    mover: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "sandbox-groups"))
    """Moves processes between control groups while nobody waits: the kernel takes milliseconds."""
    builder: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "sandbox-spares"))
    """Builds what somebody is likely to ask for next."""
    endings: list[Callable[[], None]] = field(default_factory=list)
    """How to end the spares, which nobody else holds."""
    monitor: Monitor = field(default_factory=Monitor)
    """Keeps the limits of sandboxes without a control group."""
    user_namespace: int | None = None
    """Kept so that a zygote started later can fork sandboxes an earlier one made."""

    def base_folder(self) -> str:
        """The folder that holds those of all sandboxes without a private root."""
        if self.folder is None:
            self.folder = tempfile.mkdtemp(prefix="envtorch-")
            os.chmod(self.folder, 0o711)  # noqa: S103  the sandbox's user must pass, and cannot list
        return self.folder

    def new_folder(self) -> str:
        """A folder for a sandbox without a private root."""
        made = tempfile.mkdtemp(dir=self.base_folder())
        if os.geteuid() == 0:
            os.chown(made, NOBODY, NOBODY)
        return made

    def end_spares(self) -> None:
        self.builder.shutdown(cancel_futures=True)
        for end in self.endings:
            end()

    def release(self) -> None:
        self.mover.shutdown()
        self.groups.remove()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.user_namespace is not None:
            os.close(self.user_namespace)


@dataclass(slots=True)
class Zygote:
    """One warm interpreter, and the supervisor beside it."""

    supervisor: "subprocess.Popen[bytes]"
    lifeline: socket.socket
    channel: socket.socket
    process: int
    why_no_namespaces: str
    root: int | None = None
    """The mount namespace with the private root, kept for a successor."""

    @property
    def has_namespaces(self) -> bool:
        return not self.why_no_namespaces

    def spawn(self, config: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Ask for a sandbox, which will speak on the first descriptor. Raises `OSError` when we are dead."""
        socket.send_fds(self.channel, [protocol.encode(config)], list(descriptors))

    def is_alive(self) -> bool:
        if self.supervisor.poll() is not None:
            return False
        try:
            return bool(self.channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def disown(self) -> None:
        """In a forked child of the owner: close its copies of the descriptors, and leave the zygote alone."""
        self.supervisor.returncode = 0  # not a child of this process: there is nothing to wait for
        self.channel.close()
        self.lifeline.close()
        if self.root is not None:
            os.close(self.root)

    def close(self, *, leave: bool = False) -> None:
        """End the zygote; its sandboxes live on. `leave` keeps the supervisor from cleaning up."""
        if self.root is not None:
            os.close(self.root)
            self.root = None
        if leave:
            with contextlib.suppress(OSError):
                self.lifeline.send(b'{"op":"leave"}')
        self.channel.close()
        self.lifeline.close()
        try:
            self.supervisor.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.supervisor.kill()
            self.supervisor.wait()


@dataclass(frozen=True, slots=True)
class _Key:
    process: int
    preload: tuple[str, ...]
    readable: tuple[str, ...]
    namespaces: bool
    landlock_abi: int | None


_lock = threading.RLock()
_zygotes: dict[_Key, Zygote] = {}
_owned: dict[int, OwnedResources] = {}


def owned_resources() -> OwnedResources:
    """What this process owns. A forked child of it starts with nothing."""
    if (found := _owned.get(os.getpid())) is not None:
        return found  # without the lock, which is held for as long as a zygote takes to start
    with _lock:
        if os.getpid() not in _owned:
            _owned[os.getpid()] = OwnedResources()
        return _owned[os.getpid()]


def zygote_for(policy: Policy) -> Zygote:
    """A living zygote that suits `policy`, started or restarted if need be. Blocks while it starts."""
    if policy.root is not None:
        raise ConfigurationError("a policy with a root is for a Workspace; a Sandbox has a private root")
    key = _Key(os.getpid(), policy.preload, policy.readable, policy.namespaces, policy.landlock_abi)
    with _lock:
        zygote = _zygotes.get(key)
        if zygote is not None and zygote.is_alive():
            return zygote
        if zygote is None:
            _zygotes[key] = _start(policy, root=None)
        else:
            logger.warning("a zygote died and is replaced; its sandboxes live on")
            _zygotes[key] = _start(policy, root=zygote.root)
            zygote.close(leave=True)
        return _zygotes[key]


def shutdown() -> None:
    """End every zygote of this process and remove what it owned. Runs by itself at exit."""
    with _lock:
        owned = _owned.get(os.getpid())
    if owned is not None:
        owned.end_spares()  # while the zygotes live, who bury them; unlocked, as one may be under way
    with _lock:
        for key in [key for key in _zygotes if key.process == os.getpid()]:
            _zygotes.pop(key).close()
        if owned is not None:
            owned.release()
            _owned.pop(os.getpid(), None)


atexit.register(shutdown)


def _disown_all() -> None:
    """In a forked child of the owner: what it held open would keep zygotes alive after the owner's end."""
    global _lock
    _lock = threading.RLock()  # a thread of the owner's may have held it
    for zygote in _zygotes.values():
        zygote.disown()
    _zygotes.clear()
    _owned.clear()


os.register_at_fork(after_in_child=_disown_all)


def _environment() -> dict[str, str]:
    here = os.path.dirname(sys.executable)
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        "PATH": f"{here}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/home/agent",
        **threads,
    }


def _python() -> str:
    """The interpreter, by a path without detours: those may lead through folders that no sandbox has."""
    folder, name = os.path.split(sys.executable)
    return os.path.join(os.path.realpath(folder), name)


def _prefixes() -> list[str]:
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    return list(dict.fromkeys([*found, *map(os.path.realpath, found)]))


def _start(policy: Policy, *, root: int | None) -> Zygote:
    if sys.platform != "linux":
        raise EnvironmentFailed("the kernel sandbox needs Linux; the smolagents executor runs elsewhere")
    owned = owned_resources()
    lifeline, lifeline_far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, channel_far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lifeline.settimeout(_START_TIMEOUT_S)
    channel.settimeout(_START_TIMEOUT_S)
    with lifeline_far, channel_far, tempfile.TemporaryFile() as diagnosis:
        far = [lifeline_far.fileno(), channel_far.fileno()]
        supervisor = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", "-B", "-c", _SUPERVISOR, str(_GUEST.parent), *map(str, far)],
            pass_fds=far,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=diagnosis,
            stderr=diagnosis,
            start_new_session=True,
        )
        zygote = Zygote(supervisor, lifeline, channel, 0, "")
        lifeline_far.close()
        channel_far.close()
        try:
            return _greet(zygote, policy, owned, root)
        except (OSError, protocol.Nonsense) as error:
            zygote.close(leave=True)
            diagnosis.seek(0)
            said = diagnosis.read().decode(errors="replace").strip()
            raise EnvironmentFailed(f"the zygote did not start: {error} {said}".strip()) from error


def _greet(zygote: Zygote, policy: Policy, owned: OwnedResources, root: int | None) -> Zygote:
    """Give supervisor and zygote their settings, and wait until the zygote is warm."""
    prefixes, environment = _prefixes(), _environment()
    readable = list(policy.readable)
    settings: dict[str, Any] = {
        "namespaces": policy.namespaces,
        "prefixes": prefixes,
        "readable": readable,
        "python": _python(),
        "environment": environment,
        "groups": sorted({str(folder) for folder in owned.groups.folders.values()}),
    }
    known = {"user": owned.user_namespace, "mnt": root}
    doors = {name: door for name, door in known.items() if door is not None}
    settings["doors"] = list(doors)
    socket.send_fds(zygote.lifeline, [protocol.encode(settings)], list(doors.values()))
    started, descriptors = _expect(zygote.lifeline, "started")
    zygote.process, zygote.why_no_namespaces = started.pid, started.why_no_namespaces
    if zygote.why_no_namespaces:
        if policy.namespaces:
            logger.warning("sandboxes run at container grade: %s", zygote.why_no_namespaces)
        # Told now, so that the supervisor can remove it should we be killed.
        zygote.lifeline.send(protocol.encode({"op": "clean", "folder": owned.base_folder()}))
    compiled = compile_filter(PRIVATE_ROOT if zygote.has_namespaces else SHARED_ROOT)
    context = {
        "namespaces": zygote.has_namespaces,
        "why_no_namespaces": zygote.why_no_namespaces,
        "program": _as_text(compiled.program),
        "why_no_program": compiled.why_not,
        "agent_program": _as_text(compile_filter(AGENT).program),
        "agent_program_without_signals": _as_text(compile_filter(AGENT_WITHOUT_SIGNALS).program),
        "landlock_abi": policy.landlock_abi,
        "readable": system_paths(prefixes, readable),
        "environment": environment,
        "preload": list(policy.preload),
    }
    socket.send_fds(zygote.channel, [protocol.encode(context)], [])
    _, rooms = _expect(zygote.channel, "warm")
    zygote.root = rooms[0] if rooms else None
    for descriptor in descriptors:
        if owned.user_namespace is None:
            owned.user_namespace = descriptor
        else:
            os.close(descriptor)
    zygote.channel.setblocking(True)
    return zygote


def _as_text(program: bytes | None) -> str | None:
    return base64.b64encode(program).decode() if program is not None else None


def _expect(channel: socket.socket, event: str) -> tuple[protocol.Control, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(channel, 65536, 4)
    if not data:
        raise OSError("it ended before it was ready")
    said = protocol.decode_control(data)
    if said.event != event:
        raise OSError(said.message or f"it said {said.event!r} and not {event!r}")
    return said, descriptors
