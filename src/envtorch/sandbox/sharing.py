"""Large text for many sandboxes: written once to a sealed memory file, which each of them reads."""

import fcntl
import os
import socket
from types import TracebackType
from typing import Self

from envtorch.errors import OutOfResources

from . import protocol
from .core import Core, new_identifier
from .driver import Flow
from .running import speak

__all__ = ["SharedText", "share"]

_SHARE_TIMEOUT_S = 30.0
_CHUNK = 1 << 24


class SharedText:
    """A text in a memory file that any number of sandboxes can read, and none can change.

    Each sandbox that is given it with `share` has a `str` of its own; forks of that sandbox share the
    characters copy-on-write. Close it when it has been given to all of them.
    """

    def __init__(self, text: str) -> None:
        self.length = len(text)
        data = text.encode("utf-8", "surrogatepass")
        self.size = len(data)
        self._descriptor = os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with memoryview(data) as view:
                _write_all(self._descriptor, view)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def share(core: Core, name: str, text: SharedText) -> Flow[None]:
    """Define `name` in the sandbox as the text. Raises `OutOfResources` when it has no room for it."""
    core.require_interpreter()
    identifier = new_identifier()
    request = {"type": "share", "id": identifier, "name": name, "size": text.size, "length": text.length}
    frame = protocol.frame(request)
    sent = socket.send_fds(core.handle.data, [frame[:1]], [text.fileno()])
    assert sent == 1
    said = yield from speak(core, identifier, frame[1:], protocol.Shared, timeout_s=_SHARE_TIMEOUT_S)
    assert isinstance(said, protocol.Shared)
    if said.error is not None:
        raise OutOfResources(f"the sandbox could not take a text of {text.length} characters: {said.error}")


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data[:_CHUNK]) :]
