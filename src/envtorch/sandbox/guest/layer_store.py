"""The process that holds the layers of copy-on-write roots, and starts sessions on them.

It lives in a user namespace and a mount namespace of its own, whose mounts end with it: nothing of them is
ever seen outside. It never runs an agent's program. Each session gets a file system in memory for what it
changes (its size is the disk limit), and a detached overlay of that above the layers it was started on.
"""

import base64
import contextlib
import json
import os
import re  # noqa: F401  sessions need it after their root has changed, when nothing can be imported
import signal
import socket
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from . import guest_wire as wire
from . import kernel, layer_merging, layers, mounts, tree, workspace_init
from .store_requests import Steps, StoreAnswer, StoreRequests

STORE = "/tmp"  # noqa: S108  covered by a file system of our own, in our mount namespace alone
FIRST_ID, ID_COUNT = 1_879_048_192, 65_536
"""The range of the machine's ids that stand for those of a session: above what other tools hand out."""
HOST = "host"
_DEEPEST = 64
"""A session with more layers than this has them merged into one when it is forked."""
_NAMESPACES = kernel.NEW_MOUNT | kernel.NEW_PID | kernel.NEW_UTS | kernel.NEW_IPC | 0x02000000
_WITHOUT_NETWORK = kernel.new_namespaces(_NAMESPACES)
_WITH_NETWORK = kernel.new_namespaces(_NAMESPACES | kernel.NEW_NET)
_INODE_BYTES = 4096


@dataclass(slots=True)
class StoredSession:
    """The layers of one session: those below it, the topmost first, and how often its own was frozen."""

    lowers: list[str]
    base: int
    """How many of the lowest layers are an image, which is never merged with what a session changed."""
    generation: int = 0
    latest: int = 0
    """The last generation that was made, which the session may have failed to enter."""


@dataclass(slots=True)
class LayerStore:
    """All layers, and which session stands on which."""

    filters: Sequence[kernel.Seccomp]
    image: list[str]
    sessions: dict[str, StoredSession] = field(default_factory=dict)
    disks: set[str] = field(default_factory=set)
    """File systems in memory: of sessions, alive or needed by others, and of layers that were made."""

    def open(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> StoreAnswer:
        """Start a session on some layers; it speaks on the first descriptor. The answer holds a pidfd of its
        first process, and none if that has ended already: it says why."""
        name = request["session"]
        self._make_disk(name, request["disk_bytes"])
        lowers = [self._path(one) for one in request["layers"]]
        self.sessions[name] = session = StoredSession(lowers, request["base"])
        try:
            root = self._overlay(name, lowers, session.generation)
            try:
                process = self._fork_session(root, request["settings"], *descriptors)
            finally:
                os.close(root)
        except BaseException:
            self.close(name)
            raise
        watch = []
        with contextlib.suppress(ProcessLookupError):
            watch.append(os.pidfd_open(process))
        return StoreAnswer({"event": "done"}, watch)

    def _fork_session(
        self, root: int, settings: Mapping[str, Any], control: int, network: int | None = None
    ) -> int:
        process = kernel.fork_into(_WITH_NETWORK if network is None else _WITHOUT_NETWORK)
        if process == 0:
            try:
                channel = socket.SocketType(fileno=os.dup(control))
                workspace_init.live(channel, root, settings, self.filters, network)
            finally:
                os._exit(70)  # whatever happened, it is not the store, and answers nobody
        return process

    def stack(self, name: str) -> Steps:
        """An overlay above what a session has changed until now, which is frozen, and above its layers. It
        becomes the session's own with `stacked`; until then the session is as it was."""
        session = self.sessions[name]
        session.latest = generation = session.latest + 1
        lowers = [f"{STORE}/{name}/upper{session.generation}", *session.lowers]
        own = len(lowers) - session.base
        if own > _DEEPEST:
            merged = f"{STORE}/{name}/merged{generation}"
            yield partial(_merge_anew, lowers[:own], merged)
            lowers = [merged, *lowers[own:]]
        root = self._overlay(name, lowers, generation)
        return StoreAnswer({"event": "done", "layers": self._names(lowers)}, [root])

    def stacked(self, name: str, layer_names: Sequence[str]) -> Mapping[str, Any]:
        """A session has entered the overlay that `stack` answered with."""
        session = self.sessions[name]
        session.lowers = [self._path(layer) for layer in layer_names]
        session.generation = session.latest
        return {"event": "done"}

    def copy(self, name: str, target: str, disk_bytes: int) -> Steps:
        """What a session has changed until now, copied as a layer of its own; the session goes on."""
        session = self.sessions[name]
        lowers = session.lowers
        self._make_disk(target, disk_bytes)
        place = f"{STORE}/{target}/upper0"
        yield partial(_merge_anew, [f"{STORE}/{name}/upper{session.generation}"], place)
        return StoreAnswer({"event": "done", "layers": self._names([place, *lowers])})

    def layer(self, request: Mapping[str, Any], archive: int) -> Steps:
        """A further layer, from an archive, with some of its directories hiding what is below them."""
        name = request["layer"]
        self._make_disk(name, request["disk_bytes"])
        place = f"{STORE}/{name}/upper0"
        yield partial(_unpack, archive, place, request["opaque"])
        return StoreAnswer({"event": "done", "layers": self._names([place])})

    def layers_of(self, name: str) -> Mapping[str, Any]:
        """All layers of a session whose processes have ended, its own first."""
        session = self.sessions[name]
        own = f"{STORE}/{name}/upper{session.generation}"
        return {"event": "done", "layers": self._names([own, *session.lowers])}

    def extract(self, request: Mapping[str, Any]) -> Steps:
        """A further layer: of what some layers have changed of an image, what may be seen above that image.
        What was left out is a JSON object in a file in memory."""
        name = request["layer"]
        self._make_disk(name, request["disk_bytes"])
        selection = layer_merging.Selection.of(request["kept"], request["open"], request["closed"])
        changed, image = ([self._path(layer) for layer in request[kind]] for kind in ("layers", "image"))
        listing = os.memfd_create("left out", os.MFD_CLOEXEC)
        try:
            yield partial(_extract, f"{STORE}/{name}", changed, selection, image, listing)
        except OSError:
            os.close(listing)
            raise
        return StoreAnswer({"event": "done", "layers": [f"{name}/upper0"]}, [listing])

    def close(self, name: str, *, keep: bool = False) -> Mapping[str, Any]:
        """Forget a session or a layer; what others still stand on stays until they are closed.

        With `keep` the session is forgotten, and its layers stay until they are closed by the same name.
        """
        self.sessions.pop(name, None)
        if not keep:
            self.disks.discard(name)
        needed = {path.split("/")[2] for one in self.sessions.values() for path in one.lowers}
        for entry in os.listdir(STORE):
            is_free = entry not in needed and entry not in self.sessions and entry not in self.disks
            if is_free and entry not in ("image", "mask"):
                with contextlib.suppress(OSError):
                    mounts.unmount(f"{STORE}/{entry}")
                with contextlib.suppress(OSError):
                    os.rmdir(f"{STORE}/{entry}")
        return {"event": "done"}

    def _make_disk(self, name: str, size: int) -> None:
        os.mkdir(f"{STORE}/{name}")
        inodes = max(1024, size // _INODE_BYTES)
        options = f"size={size},nr_inodes={inodes},mode=755"
        kernel.mount("tmpfs", f"{STORE}/{name}", "tmpfs", kernel.NO_DEVICES, options)
        self.disks.add(name)

    @staticmethod
    def _overlay(name: str, lowers: Sequence[str], generation: int) -> int:
        upper, work = (f"{STORE}/{name}/{kind}{generation}" for kind in ("upper", "work"))
        for folder in (upper, work):
            os.mkdir(folder)
        return mounts.make_overlay(lowers, upper, work)

    @staticmethod
    def _names(paths: Sequence[str]) -> list[str]:
        return [path.removeprefix(f"{STORE}/") for path in paths]

    @staticmethod
    def _path(name: str) -> str:
        return f"{STORE}/{name}"


def main(channel_descriptor: int) -> None:
    """Make the namespaces and the image's layer, then serve the owner until it goes away."""
    channel = socket.SocketType(fileno=channel_descriptor)
    packet = wire.receive_packet(channel)
    if packet is None:
        return
    settings, _ = packet
    try:
        store = _prepare(settings)
    except OSError as error:
        wire.send_packet(channel, {"event": "failed", "message": str(error), "errno": error.errno})
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel.become_subreaper()
    _discard_output()
    wire.send_packet(channel, {"event": "ready", "layers": LayerStore._names(store.image)})
    StoreRequests(channel, partial(_steps, store)).serve()


def _discard_output() -> None:
    """Until the store is ready, what goes wrong is written to a file of the owner's; sessions must not have
    it."""
    nowhere = os.open("/dev/null", os.O_WRONLY)
    for place in (1, 2):
        os.dup2(nowhere, place)
    os.close(nowhere)


def _steps(store: LayerStore, request: Mapping[str, Any], descriptors: Sequence[int]) -> Steps:
    match request["op"]:
        case "open":
            return store.open(request, descriptors)
        case "stack":
            return (yield from store.stack(request["session"]))
        case "stacked":
            return StoreAnswer(store.stacked(request["session"], request["layers"]))
        case "copy":
            return (yield from store.copy(request["session"], request["layer"], request["disk_bytes"]))
        case "layer":
            return (yield from store.layer(request, descriptors[0]))
        case "layers":
            return StoreAnswer(store.layers_of(request["session"]))
        case "extract":
            return (yield from store.extract(request))
        case "close":
            return StoreAnswer(store.close(request["session"], keep=request.get("keep", False)))
    raise KeyError(request["op"])


def _unpack(archive: int, place: str, opaque: Sequence[str]) -> None:
    """Runs in a child process: every session's init is forked from the store, and would have in its memory
    what the store has read."""
    os.makedirs(place)
    with os.fdopen(os.dup(archive), "rb") as file, tarfile.open(fileobj=file) as tar:
        tar.extractall(place, filter="fully_trusted")  # noqa: S202  the owner made it, of its own files
    for path in opaque:
        os.makedirs(place + path, exist_ok=True)
        layers.make_opaque(place + path)


def _merge_anew(sources: Sequence[str], place: str) -> None:
    """Merge layers into a new one, of which nothing is left when it fails."""
    os.mkdir(place)
    try:
        layer_merging.merge(sources, place)
    except BaseException:
        tree.remove(place)
        raise


def _extract(
    disk: str,
    changed: Sequence[str],
    selection: layer_merging.Selection,
    image: Sequence[str],
    listing: int,
) -> None:
    os.mkdir(f"{disk}/upper0")
    with _view(image, f"{disk}/view") as seen:
        left_out = layer_merging.extract(changed, f"{disk}/upper0", selection, seen)
    told = {"reverted": sorted(left_out.reverted), "hidden": sorted(left_out.hidden)}
    with os.fdopen(os.dup(listing), "wb") as file:
        file.write(json.dumps(told).encode())


@contextlib.contextmanager
def _view(layer_paths: Sequence[str], place: str) -> Iterator[str]:
    """Some layers, seen as one tree."""
    os.mkdir(place)
    seen = mounts.make_overlay(layer_paths)
    mounts.attach(seen, place)
    os.close(seen)
    try:
        yield place
    finally:
        mounts.unmount(place)


def _prepare(settings: Mapping[str, Any]) -> LayerStore:
    root = "/" if settings["root"] == HOST else settings["root"]
    if os.getuid() == 0:
        namespace = _new_namespace(_map_range)
        cloned = mounts.clone_tree(root)
        mounts.map_owners(cloned, namespace)
        kernel.setns(namespace, kernel.NEW_USER)
        os.close(namespace)
        kernel.unshare(kernel.NEW_MOUNT)
        os.setresgid(0, 0, 0)
        os.setgroups([])
        os.setresuid(0, 0, 0)
    else:
        user, group = os.getuid(), os.getgid()
        kernel.unshare(kernel.NEW_USER | kernel.NEW_MOUNT)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            _write(f"/proc/self/{name}", text)
        cloned = mounts.clone_tree(root)
    os.umask(0o022)
    kernel.mount(None, "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("tmpfs", STORE, "tmpfs", kernel.NO_DEVICES, "mode=755")
    os.mkdir(f"{STORE}/image")
    mounts.attach(cloned, f"{STORE}/image")
    os.close(cloned)
    image = [f"{STORE}/image"]
    if settings["root"] == HOST:
        os.mkdir(f"{STORE}/mask")
        layers.mask_host(f"{STORE}/mask", f"{STORE}/image")
        image.insert(0, f"{STORE}/mask")
    filters = [kernel.Seccomp(base64.b64decode(program)) for program in settings["programs"]]
    return LayerStore(filters, image)


def _map_range(process: int) -> None:
    for name in ("uid_map", "gid_map"):
        _write(f"/proc/{process}/{name}", f"0 {FIRST_ID} {ID_COUNT}")


def _new_namespace(write_maps: Callable[[int], None]) -> int:
    """A descriptor of a new user namespace, made by a child that ends at once."""
    made, maker = os.pipe()
    release, releaser = os.pipe()
    process = os.fork()
    if process == 0:
        with contextlib.suppress(BaseException):
            kernel.unshare(kernel.NEW_USER)
            os.write(maker, b"1")
            os.close(releaser)
            os.read(release, 1)
        os._exit(0)
    os.close(maker)
    try:
        if not os.read(made, 1):
            raise PermissionError(1, "a user namespace cannot be made here")
        write_maps(process)
        return os.open(f"/proc/{process}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (made, release, releaser):
            os.close(descriptor)
        os.waitpid(process, 0)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
