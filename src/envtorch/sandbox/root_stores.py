"""The owner's side of the processes that hold copy-on-write roots: one for each root, started when needed."""

import atexit
import base64
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from envtorch.errors import ConfigurationError, EnvironmentFailed, OutOfResources

from . import protocol
from .filter import WRITABLE_ROOT, compile_filter
from .prepared_roots import RootCache
from .root_names import HOST

__all__ = ["RootStore", "StoreReply", "close_root_stores", "decode_reply", "root_path", "root_store_for"]

logger = logging.getLogger(__name__)

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from guest.layer_store import main; main(int(sys.argv[2]))"
)
_START_TIMEOUT_S = 120.0
_REQUEST_TIMEOUT_S = 300.0
_MOST_DESCRIPTORS = 16
_OUT_OF = {12: "memory", 28: "disk or namespaces", 11: "processes", 24: "descriptors"}


class RunningProcess(msgspec.Struct, frozen=True):
    """A process of a session besides its shell."""

    pid: int
    name: str


class StoreReply(msgspec.Struct, frozen=True):
    """What a store or the init of a session says. Both are ours."""

    event: str
    message: str = ""
    errno: int | None = None
    layers: list[str] = []
    pid: int = 0
    job: str = ""
    status: int = 0
    processes: list[RunningProcess] = []


_decoder: msgspec.json.Decoder[StoreReply] = msgspec.json.Decoder(StoreReply)


def decode_reply(data: bytes) -> StoreReply:
    """Raises `EnvironmentFailed` for what no process of ours would say."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise EnvironmentFailed(f"a session's init said what is no reply: {error}") from error


@dataclass(slots=True, eq=False)
class RootStore:
    """One root, and the process that holds it with all layers above it."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    image: list[str] = field(default_factory=list)
    """The layers of the root itself, the topmost first."""
    held: int | None = None
    """A descriptor that keeps a prepared root from being removed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[StoreReply, list[int]]:
        """One request and its reply. Raises `OutOfResources` or `EnvironmentFailed` when it fails."""
        with self._lock:
            try:
                socket.send_fds(self.channel, [protocol.encode(request)], list(descriptors))
                reply, given = self._receive()
            except OSError as error:
                raise EnvironmentFailed(f"the process that holds the root has gone: {error}") from error
        if reply.event == "failed":
            raise _failure(reply)
        return reply, given

    def _receive(self) -> tuple[StoreReply, list[int]]:
        data, given, _, _ = socket.recv_fds(self.channel, 1 << 16, _MOST_DESCRIPTORS)
        if not data:
            raise OSError("it ended")
        return decode_reply(data), given

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def disown(self) -> None:
        """In a forked child of the owner: close its copy of the channel, and leave the process alone."""
        self.process.returncode = 0
        self.channel.close()
        self._let_go()

    def close(self) -> None:
        """End the process, and with it every layer. Sessions that still run keep the files they have."""
        self.channel.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._let_go()

    def _let_go(self) -> None:
        if self.held is not None:
            os.close(self.held)
            self.held = None


def _failure(reply: StoreReply) -> EnvironmentFailed | OutOfResources:
    if reply.errno in _OUT_OF:
        return OutOfResources(
            f"a session ran out of {_OUT_OF[reply.errno]} while it was made: {reply.message}"
        )
    return EnvironmentFailed(f"a session on a writable root could not be made: {reply.message}")


_lock = threading.Lock()
_stores: dict[tuple[int, str], RootStore] = {}


def root_store_for(root: str) -> RootStore:
    """The living store of a root, started if need be. Raises `ConfigurationError` where there can be none."""
    place = root_path(root)
    key = os.getpid(), place
    with _lock:
        store = _stores.get(key)
        if store is None or not store.is_alive():
            if store is not None:
                logger.warning("the process that holds the root %s died and is replaced", root)
                store.close()
            _stores[key] = store = _start_held(place)
        return store


def root_path(root: str) -> str:
    """Where the files of a root are; a prepared one is looked up by name. `host` stays as it is."""
    if root == HOST or os.path.isabs(root):
        return root
    cache = RootCache()
    return cache.path(cache.get(root))


def _start_held(place: str) -> RootStore:
    held = None if place == HOST else RootCache().hold(place)
    try:
        store = _start(place)
    except BaseException:
        if held is not None:
            os.close(held)
        raise
    store.held = held
    return store


def close_root_stores() -> None:
    """End every store of this process. Runs by itself at exit."""
    with _lock:
        for key in [key for key in _stores if key[0] == os.getpid()]:
            _stores.pop(key).close()


atexit.register(close_root_stores)


def _disown_all() -> None:
    global _lock
    _lock = threading.Lock()
    for store in _stores.values():
        store.disown()
    _stores.clear()


os.register_at_fork(after_in_child=_disown_all)


def _start(root: str) -> RootStore:
    if sys.platform != "linux":
        raise ConfigurationError("a writable root needs Linux")
    if root != HOST and not os.path.isdir(root):
        raise ConfigurationError(f"there is no directory {root} to use as a root file system")
    channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.settimeout(_START_TIMEOUT_S)
    with far, tempfile.TemporaryFile() as diagnosis:
        guest = str(Path(__file__).parent)
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", "-B", "-c", _START, guest, str(far.fileno())],
            pass_fds=[far.fileno()],
            env={},
            stdin=subprocess.DEVNULL,
            stdout=diagnosis,
            stderr=diagnosis,
            start_new_session=True,
        )
        store = RootStore(process, channel)
        far.close()
        try:
            program = compile_filter(WRITABLE_ROOT)
            if program.program is None:
                raise ConfigurationError(f"a writable root needs a system call filter: {program.why_not}")
            settings = {"root": root, "program": base64.b64encode(program.program).decode()}
            channel.send(protocol.encode(settings))
            reply, _ = store._receive()
        except OSError as error:
            store.close()
            diagnosis.seek(0)
            said = diagnosis.read().decode(errors="replace").strip()
            raise EnvironmentFailed(
                f"the root {root} could not be prepared: {error} {said}".strip()
            ) from error
        except BaseException:
            store.close()
            raise
    if reply.event != "ready":
        store.close()
        raise ConfigurationError(_explain(root, reply))
    channel.settimeout(_REQUEST_TIMEOUT_S)
    store.image = reply.layers
    return store


def _explain(root: str, reply: StoreReply) -> str:
    why = f"no writable root can be made here: {reply.message}."
    if root == HOST and os.geteuid():
        return (
            f"{why} An ordinary user cannot use the machine's own root, whose files belong to others: "
            "prepare one with `envtorch rootfs`, or unpack an image into a directory of yours as root"
        )
    with contextlib.suppress(OSError):
        limit = Path("/proc/sys/user/max_user_namespaces").read_text().strip()
        if limit == "0":
            return f"{why} User namespaces are switched off: sysctl user.max_user_namespaces"
    return (
        f"{why} It takes user namespaces, overlayfs and Linux 6.8: a default container does not "
        "allow it, the machine itself usually does (`envtorch doctor`)"
    )
