"""Text that the owner gives to a sandbox in a memory file, read into an ordinary `str`."""

import codecs
import os

_CHUNK = 1 << 18


def read_text(descriptor: int, size: int) -> str:
    """The text in the first `size` bytes of a memory file. Raises `OSError` or `MemoryError`.

    Decoded in pieces, so that it never takes more than twice its final size.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    return "".join([decoder.decode(os.pread(descriptor, _CHUNK, place)) for place in range(0, size, _CHUNK)])
