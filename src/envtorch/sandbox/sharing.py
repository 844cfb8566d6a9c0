"""Large text, given to sandboxes without a copy for each: it lies once, in a sealed memory file."""

import fcntl
import os
import socket
from types import TracebackType
from typing import Self

from envtorch.errors import OutOfResources

from . import protocol
from .core import Core, new_identifier
from .driver import Flow
from .guest.sharing import PAGE
from .running import speak

__all__ = ["SharedText", "share"]

_SHARE_TIMEOUT_S = 30.0
_CHUNK = 1 << 24


class SharedText:
    """A text in memory that any number of sandboxes can map, and none can change. Close it when it has been
    given to all of them: their mappings keep it alive."""

    def __init__(self, text: str) -> None:
        self.length = len(text)
        self.encoding, data = _encode(text)
        self._descriptor = os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._descriptor, PAGE)
            os.lseek(self._descriptor, PAGE, os.SEEK_SET)
            with memoryview(data) as view:
                for start in range(0, len(view), _CHUNK):
                    _write_all(self._descriptor, view[start : start + _CHUNK])
            _write_all(self._descriptor, memoryview(bytes(4)))  # a `str` ends with a NUL of its width
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """How many bytes of address space it takes where it is mapped."""
        return os.fstat(self._descriptor).st_size

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
    request = {
        "type": "share",
        "id": identifier,
        "name": name,
        "encoding": text.encoding,
        "length": text.length,
    }
    frame = protocol.frame(request)
    sent = socket.send_fds(core.data, [frame[:1]], [text.fileno()])
    assert sent == 1
    said = yield from speak(core, identifier, frame[1:], protocol.Shared, timeout_s=_SHARE_TIMEOUT_S)
    assert isinstance(said, protocol.Shared)
    if said.error is not None:
        raise OutOfResources(f"the sandbox could not take a text of {text.length} characters: {said.error}")


def _encode(text: str) -> tuple[str, bytes]:
    """The characters at the width that CPython itself would give them."""
    if text.isascii():
        return "ascii", text.encode("ascii")
    try:
        return "latin-1", text.encode("latin-1")
    except UnicodeEncodeError:
        narrow = text.encode("utf-16-le", "surrogatepass")
    if len(narrow) == 2 * len(text):
        return "utf-16-le", narrow
    return "utf-32-le", text.encode("utf-32-le", "surrogatepass")


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
