"""Keeping together what every sandbox writes to.

A page that a sandbox writes to is copied for it, and in Python to use an object is to write to it: reference
counts lie in the objects. So what the sandboxes will use had better lie on few pages.
"""

import gc
import sys

_LARGE_SIZES = (32768, 16384, 8192, 4096, 2048, 1024, 768, 640, 560)
_POOL_SIZES = range(48, 513, 16)
_OVERHEAD = sys.getsizeof(b"")
_ENOUGH_IN_A_ROW = 6
_MOST = 20_000
_filling: list[bytes] = []
"""Never freed. The zygote has it once, and the sandboxes share it."""


def fill_holes() -> None:
    """Have what is made from now on lie side by side, and not in gaps all over the heap."""
    gc.collect()
    for size in (*_LARGE_SIZES, *_POOL_SIZES):
        in_a_row, last = 0, 0
        for _ in range(_MOST):
            piece = bytes(size - _OVERHEAD)
            _filling.append(piece)
            in_a_row = in_a_row + 1 if 0 < id(piece) - last <= size + 16 else 0
            last = id(piece)
            if in_a_row >= _ENOUGH_IN_A_ROW:
                break


def look_up(*things: object) -> None:
    """Ask the types of these for all that their own code will ask them for: the type cache then has the
    answers, and nobody writes to it."""
    for thing in things:
        kind = type(thing)
        for name in (*vars(kind), *getattr(thing, "__dict__", ())):
            if not name.startswith("__"):
                getattr(kind, name, None)
