"""Text that the owner gives to a sandbox in a memory file, read into an ordinary `str`."""

import codecs
import mmap

_CHUNK = 1 << 20


def read_text(descriptor: int, size: int, length: int) -> str:
    """The `length` characters in the first `size` bytes of a memory file, as UTF-8.

    Text that is not ASCII is decoded in pieces, so that it never takes more than twice its final size.
    Raises `OSError` or `MemoryError`.
    """
    if not size:
        return ""
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapping, memoryview(mapping) as view:
        if size == length:
            return str(view, "ascii")
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        return "".join([decoder.decode(view[place : place + _CHUNK]) for place in range(0, size, _CHUNK)])
