"""Keeping together what every sandbox writes to.

A page that a sandbox writes to is copied for it, and in Python to use an object is to write to it: reference
counts lie in the objects. So what the sandboxes will use had better lie on few pages.
"""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from opcode import opmap
from types import FunctionType

_LARGE_SIZES = (32768, 16384, 8192, 4096, 2048, *range(1040, 16, -16))
_SMALL_SIZES = range(48, 513, 16)
_POOL = 16 * 1024
"""Python's own allocator cuts pieces of one size out of so much at a time."""
_POOL_HEADER = 64
"""At the beginning of each, and no longer than this."""
_LARGE_ENOUGH = 8
"""Gaps of the largest size are few."""
_PAGE = 4096
_OVERHEAD = sys.getsizeof(b"")
_NOTHING = bytes([opmap["NOP"], 0])
_MOST = 20_000
_filling: list[object] = []
"""Never freed. The zygote has it once, and the sandboxes share it."""
_allocate: Callable[[int], int] = ctypes.CDLL(None).malloc
_allocate.restype = ctypes.c_void_p  # type: ignore[attr-defined]


def fill_holes() -> None:
    """Have what is made from now on lie side by side, and not in gaps all over the heap: small things at the
    beginning of a pool, on the page that has its header and is written to anyway."""
    gc.collect()
    for size, make in _small_pieces():
        _fill_small(size, make)
    highest = max(_allocate(_LARGE_SIZES[0]) for _ in range(_LARGE_ENOUGH))
    for size in _LARGE_SIZES:
        highest = _fill_large(size, highest)


def _small_pieces() -> Iterator[tuple[int, Callable[[], object]]]:
    """Something of each size that Python's own allocator has."""
    yield 16, object
    yield 32, lambda: float(len(_filling))
    for size in _SMALL_SIZES:
        yield size, lambda size=size: bytes(size - _OVERHEAD)  # type: ignore[misc]


def _fill_small(size: int, make: Callable[[], object]) -> None:
    """Until a new pool is begun, which is when all the older ones are full; its first page is left free."""
    run: list[object] = [None] * (_PAGE // size + 2)  # full length: growing, it would take pieces itself
    count = first = last = 0
    for _ in range(_MOST):
        piece = make()
        if id(piece) - last != size:
            first, count = id(piece), 0
        last = id(piece)
        if first % _POOL < _POOL_HEADER:
            run[count] = piece
            count += 1
            if last // _PAGE > first // _PAGE:
                break
        else:
            _filling.append(piece)
    # Two are kept: the one beyond the page, and the first, as a pool of which nothing is used is given back.
    _filling.extend((piece, run[0]))
    del piece
    while run:
        run.pop()


def _fill_large(size: int, highest: int) -> int:
    """Until it comes from the end of the heap: answers with where that is."""
    for _ in range(_MOST):
        place = _allocate(size)
        if place > highest:
            return place
    return highest


def gather(functions: Iterable[FunctionType]) -> None:
    """Have the code of these lie together.

    Up to 512 bytes, Python keeps the objects of each size on pages of their own. What is longer lies one
    behind the other, so a code that is too short gets an end that is never reached.
    """
    for function in functions:
        code = function.__code__
        missing = max(0, _SMALL_SIZES[-1] + 16 - sys.getsizeof(code))
        function.__code__ = code.replace(co_code=code.co_code + _NOTHING * (missing // 2))


def look_up(*things: object) -> None:
    """Ask the types of these for all that their own code will ask them for: the type cache then has the
    answers, and nobody writes to it."""
    for thing in things:
        kind = type(thing)
        for name, value in list(vars(kind).items()):
            code = getattr(value, "__code__", None)
            for used in (name, *(code.co_names if code else ())):
                if not used.startswith("__"):
                    getattr(kind, used, None)
