"""Text that lies in memory shared with its owner, as an ordinary `str`.

CPython keeps the characters of a `str` right behind its header. The owner sends a memory file with one
empty page before the characters; it is mapped privately, and the header is written at the end of that page.
So one page is ours, and the characters are the owner's pages, however many sandboxes map them.
"""

import ctypes
import mmap
import os
import struct
import sys

from . import kernel

PAGE = 4096
_SAMPLES = {"ascii": "ab", "latin-1": "éé", "utf-16-le": "€€", "utf-32-le": "😀😀"}
_WIDTHS = {"ascii": 1, "latin-1": 1, "utf-16-le": 2, "utf-32-le": 4}
_NEVER_FREED = (0xFFFFFFFF if sys.version_info >= (3, 12) else 1 << 40).to_bytes(8, "little")
_LAYOUT_IS_KNOWN = (
    sys.implementation.name == "cpython" and "t" not in sys.abiflags and sys.byteorder == "little"
)
_WORTH_SHARING = 65536
"""Shorter texts are copied."""
_kept: list[object] = []
"""Mappings under strings. They stay for good: the interpreter may hold the string anywhere."""


def adopt(descriptor: int, encoding: str, length: int) -> str:
    """The text of `length` characters in a memory file. Raises `OSError` when there is no room for it."""
    width = _WIDTHS[encoding]
    size = PAGE + (length + 1) * width
    if os.fstat(descriptor).st_size < size:
        raise OSError(22, "the memory file is shorter than its text")
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    if length < _WORTH_SHARING or not _LAYOUT_IS_KNOWN:
        with mapping, memoryview(mapping) as view:
            return str(view[PAGE : PAGE + length * width], encoding, "surrogatepass")
    anchor = ctypes.c_char.from_buffer(mapping)
    # Before the first write: what can never be written has no pages of its own, and a fork need not even
    # look at its page tables.
    kernel.forbid_writing(ctypes.addressof(anchor) + PAGE, size - PAGE)
    header = _header(encoding, length)
    mapping[PAGE - len(header) : PAGE] = header
    _kept.extend((mapping, anchor))
    text: str = ctypes.cast(ctypes.addressof(anchor) + PAGE - len(header), ctypes.py_object).value
    return text


def _header(encoding: str, length: int) -> bytes:
    """The header of a real `str` of the same kind, with our length, no hash yet, and never to be freed."""
    sample = "".join(_SAMPLES[encoding])  # made now: a constant may be interned, and its header says so
    sample = sample[:1] + " " + sample[1:]
    size = sys.getsizeof(sample) - (len(sample) + 1) * _WIDTHS[encoding]
    header = bytearray(ctypes.string_at(id(sample), size))
    header[0:8] = _NEVER_FREED
    header[16:32] = struct.pack("<qq", length, -1)
    return bytes(header)
