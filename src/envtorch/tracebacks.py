"""Tracebacks reduced to the frames of an environment's author: what they can mend, and nothing of ours."""

import importlib
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

__all__ = ["author_frames", "author_line", "author_traceback", "in_standard_library", "line_of"]

_IMPORT_SYSTEM = str(Path(importlib.__file__).parent)
_PACKAGE = str(Path(__file__).parent)
_BUNDLED = str(Path(__file__).parent / "envs")
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_PACKAGES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_INSTALLED = (_STANDARD_LIBRARY, *_PACKAGES)


def author_traceback(error: BaseException) -> str:
    """The traceback of `error` without frames of EnvTorch and of the import system.

    Empty when no frame is left and the error names no source line of its own.
    """
    told = traceback.TracebackException.from_exception(error)
    _reduce(told)
    if not told.stack and getattr(told, "filename", None) is None:
        return ""
    return "".join(told.format()).rstrip()


def author_line(error: BaseException) -> str | None:
    """The author's line that raised `error`, as `file, line N`; None when no frame is the author's.

    It is the last one outside of installed packages and the standard library, where there is one.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_short(error.filename)}, line {error.lineno}"
    own = author_frames(traceback.extract_tb(error.__traceback__))
    return line_of(own) if own else None


def author_frames(stack: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """A stack, outermost frame first, without frames of EnvTorch, and from the author's first frame on."""
    own = [frame for frame in stack if _is_authors(frame)]
    first = next((number for number, frame in enumerate(own) if not _is_installed(frame)), 0)
    return own[first:]  # what calls the author's code is nothing that they can mend


def line_of(frames: list[traceback.FrameSummary]) -> str:
    """The innermost line that the author wrote, as `file, line N`; the innermost line if they wrote none."""
    last = ([frame for frame in frames if not _is_installed(frame)] or frames)[-1]
    return f"{_short(last.filename)}, line {last.lineno}"


def in_standard_library(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_STANDARD_LIBRARY) and not frame.filename.startswith(_PACKAGES)


def _reduce(told: traceback.TracebackException) -> None:
    told.stack[:] = author_frames(told.stack)
    for other in (told.__cause__, told.__context__):
        if other is not None:
            _reduce(other)


def _is_authors(frame: traceback.FrameSummary) -> bool:
    if frame.filename.startswith(("<frozen ", _IMPORT_SYSTEM)):
        return False
    return not frame.filename.startswith(_PACKAGE) or frame.filename.startswith(_BUNDLED)


def _is_installed(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_INSTALLED) and not frame.filename.startswith(_BUNDLED)


def _short(filename: str) -> str:
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return filename
