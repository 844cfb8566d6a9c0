"""The owner's side of the processes that hold copy-on-write roots: one for each root, started when needed."""

import base64
import contextlib
import os
import select
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from envtorch.errors import ConfigurationError, EnvironmentFailed, OutOfResources

from . import protocol
from .filter import BESIDE_INIT, WRITABLE_ROOT, compile_filter
from .helper_processes import HelperProcess, HelperProcesses
from .prepared_roots import RootCache
from .root_names import HOST

__all__ = ["RootStore", "StoreReply", "close_root_stores", "decode_reply", "root_path", "root_store_for"]

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
    id: int = 0
    """Of the request to an init that this is the reply to."""
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


class RootStore(HelperProcess):
    """One root, and the process that holds it with all layers above it."""

    def __init__(self, root: str) -> None:
        """Raises `ConfigurationError` where there can be none, and `EnvironmentFailed` where it fails."""
        if sys.platform != "linux":
            raise ConfigurationError("a writable root needs Linux")
        if root != HOST and not os.path.isdir(root):
            raise ConfigurationError(f"there is no directory {root} to use as a root file system")
        self.image: list[str] = []
        """The layers of the root itself, the topmost first."""
        self.held: int | None = None
        """A descriptor that keeps a prepared root from being removed."""
        self.timeout_s = _REQUEST_TIMEOUT_S
        """The most seconds that a request may take."""
        with tempfile.TemporaryFile() as diagnosis:
            super().__init__(_START, diagnosis, timeout_s=_START_TIMEOUT_S)
            try:
                reply = self._prepare(root)
            except OSError as error:
                self.close()
                diagnosis.seek(0)
                said = diagnosis.read().decode(errors="replace").strip()
                raise EnvironmentFailed(
                    f"the root {root} could not be prepared: {error} {said}".strip()
                ) from error
            except BaseException:
                self.close()
                raise
        if reply.event != "ready":
            self.close()
            raise ConfigurationError(_explain(root, reply))
        self.channel.settimeout(self.timeout_s)
        self.image = reply.layers

    def _prepare(self, root: str) -> StoreReply:
        programs = []
        for kind in (WRITABLE_ROOT, BESIDE_INIT):
            compiled = compile_filter(kind)
            if compiled.program is None:
                raise ConfigurationError(f"a writable root needs a system call filter: {compiled.why_not}")
            programs.append(base64.b64encode(compiled.program).decode())
        settings = {"root": root, "programs": programs}
        self.channel.send(protocol.encode(settings))
        reply, _ = receive_reply(self.channel)
        return reply

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[StoreReply, list[int]]:
        """One request and its reply, from any thread. Raises `OutOfResources` or `EnvironmentFailed` when it
        fails. The reply comes on a socket of this request alone, so that a late one is nobody's."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            try:
                socket.send_fds(self.channel, [protocol.encode(request)], [theirs.fileno(), *descriptors])
                theirs.close()
                reply, given = self._await_reply(ours)
            except TimeoutError as error:
                raise EnvironmentFailed(
                    f"the process that holds the root has not answered {request['op']!r} for "
                    f"{self.timeout_s:g} s: is this machine out of memory or processor time?"
                ) from error
            except OSError as error:
                raise EnvironmentFailed(f"the process that holds the root has gone: {error}") from error
        if reply.event == "failed":
            raise _failure(reply)
        return reply, given

    def _await_reply(self, replies: socket.socket) -> tuple[StoreReply, list[int]]:
        waiting = select.poll()
        waiting.register(replies, select.POLLIN)
        waiting.register(self.channel, 0)  # tells when the process ends
        if not waiting.poll(self.timeout_s * 1000):
            raise TimeoutError
        replies.setblocking(False)
        try:
            return receive_reply(replies)
        except BlockingIOError:
            raise OSError("it ended") from None

    def disown(self) -> None:
        super().disown()
        self._let_go()

    def close(self) -> None:
        """End the process, and with it every layer. Sessions that still run keep the files they have."""
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        if self.held is not None:
            os.close(self.held)
            self.held = None


def receive_reply(channel: socket.socket) -> tuple[StoreReply, list[int]]:
    """A reply and the descriptors that came with it. Raises `OSError` when the other side has gone."""
    data, given, _, _ = socket.recv_fds(channel, 1 << 16, _MOST_DESCRIPTORS)
    if not data:
        raise OSError("it ended")
    return decode_reply(data), given


def _failure(reply: StoreReply) -> EnvironmentFailed | OutOfResources:
    if reply.errno in _OUT_OF:
        return OutOfResources(
            f"a session ran out of {_OUT_OF[reply.errno]} while it was made: {reply.message}",
            errno=reply.errno,
        )
    return EnvironmentFailed(f"a session on a writable root could not be made: {reply.message}")


_stores: HelperProcesses[RootStore] = HelperProcesses()


def root_store_for(root: str) -> RootStore:
    """The living store of a root, started if need be. Raises `ConfigurationError` where there can be none."""
    place = root_path(root)
    lost = f"the process that holds the root {root} died and is replaced"
    return _stores.get(place, lambda: _start_held(place), warning=lost)


def root_path(root: str) -> str:
    """Where the files of a root are; a prepared one is looked up by name. `host` stays as it is."""
    if root == HOST or os.path.isabs(root):
        return root
    cache = RootCache()
    return cache.path(cache.get(root))


def _start_held(place: str) -> RootStore:
    held = None if place == HOST else RootCache().hold(place)
    try:
        store = RootStore(place)
    except BaseException:
        if held is not None:
            os.close(held)
        raise
    store.held = held
    return store


def close_root_stores() -> None:
    """End every store of this process. Runs by itself at exit."""
    _stores.close()


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
