"""Where an environment hangs, told by the process it hangs in when its parent asks for it by a signal."""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import envtorch
from envtorch.protocol.flow import settle
from envtorch.tracebacks import author_frames, in_standard_library, line_of

__all__ = ["answer_where", "ask_where"]

SIGNAL = signal.SIGUSR1

CALLERS = tuple(str(Path(envtorch.__file__).parent / part) for part in ("cli", "targets", "testing"))
"""The folders of EnvTorch whose code calls the author's."""


def answer_where(directory: Path) -> None:
    """From now on, write to `directory` where the author's code is, whenever the signal arrives."""
    signal.signal(SIGNAL, partial(_answer, directory / "hangs"))
    (directory / "pid").write_text(str(os.getpid()))


def ask_where(directory: Path) -> None:
    """Ask the process that answers in `directory`; it may be unable to."""
    pid = directory / "pid"
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(pid.read_text()), SIGNAL)


def _answer(place: Path, number: int, frame: FrameType | None) -> None:
    told = {}
    if found := next(filter(None, map(_called, _stacks(frame))), None):
        frames = "".join(traceback.format_list(found)).rstrip()
        told = {"method": found[0].name, "line": line_of(found), "frames": frames}
    written = place.with_suffix(".new")
    written.write_text(json.dumps(told))
    written.replace(place)


def _called(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The author's frames in what a check has called; none where it called the standard library."""
    ours = [number for number, frame in enumerate(stack) if frame.filename.startswith(CALLERS)]
    own = author_frames(stack[ours[-1] + 1 :] if ours else stack)
    return own if own and not in_standard_library(own[0]) else []


def _stacks(frame: FrameType | None) -> Iterator[traceback.StackSummary]:
    """What is awaited in this thread, what runs in it, and what runs in others."""
    with suppress(RuntimeError):  # no loop is running
        for coroutine in [task.get_coro() for task in asyncio.all_tasks()]:
            if getattr(coroutine, "__name__", "") == settle.__name__:  # the call, and no task of the author's
                yield _awaited(coroutine)
    yield traceback.extract_stack(frame)
    for other in sys._current_frames().values():
        yield traceback.extract_stack(other)


def _awaited(coroutine: Any) -> traceback.StackSummary:
    """The lines at which a coroutine, and each one that it awaits, is suspended."""
    frames = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        coroutine = getattr(coroutine, "cr_await", None)
    return traceback.StackSummary.extract(iter(frames))
