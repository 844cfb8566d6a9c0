"""The live interpreter: runs the agent's code, keeps its state, answers on the sandbox's one socket.

The agent shares this process and may break anything in it. That is why nothing here is trusted by the
owner: limits, deadlines and isolation are kept by the kernel and by the init, never by this file.
"""

import ast
import builtins
import contextlib
import errno
import json
import linecache
import os
import signal
import socket
import sys
import traceback
import types
from _signal import getsignal as get_handler  # type: ignore[import-not-found]  # without the enums
from _signal import signal as set_handler
from _thread import _count as count_threads  # of Python's, besides the first
from ast import Expr, Expression, PyCF_ONLY_AST
from collections.abc import Callable, Mapping
from gc import enable as enable_collector
from linecache import cache as known_lines
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from os import chdir, getpid
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Any

from . import forking, sharing
from .capture import DISK_ERRORS, Capture
from .wire import Frames, encode, quote

_OWN_FILES = (__file__, forking.__file__)
_REPR_LIMIT = 64 * 1024
_RESERVE = 3 * 1024 * 1024
_PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS
_REHEARSAL = ("1 / 0", "print(x)", "x + 1", "x = 1") * 9
"""More often than the adaptive interpreter needs to settle on a form of each function."""
_USER, _SYSTEM, _PEAK = range(3)
"""Places in what `getrusage` answers; to ask by name is to write to the names."""
_OK = '"outcome":"ok","exit_status":0'
_FINE = f'{_OK},"value":null,"json":null,"exception":null'
_NO_CHANNEL: Any = None
_SIGINT = int(signal.SIGINT)
_SIGNALS_OF_THE_AGENT = [int(number) for number in signal.valid_signals() if number != _SIGINT]


class Interpreter:
    """The agent's namespace and the conversation about it."""

    def __init__(self) -> None:
        """As the zygote makes it, once: every sandbox begins with a copy."""
        sys.argv = [""]
        self._frames = Frames(_NO_CHANNEL)
        self._workspace = self._output = ""
        self._capture = Capture(0)
        self._process = 0
        self._runs = 0
        self._calls = 0
        self._current = ""
        self._listening = False
        self._interrupted = False
        self._survey: forking.Survey | None = None
        self._reserve: mmap | None = None
        self._handlers: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | str | None]] = {
            "run": self._run,
            "variables": self._variables,
            "fork": self._fork,
            "share": self._share,
        }
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self._names = module.__dict__
        self._given = set(self._names)

    def live(self, channel: "socket.SocketType", workspace: str, output: str, output_limit: int) -> None:
        """Be the interpreter of one sandbox until its owner goes away."""
        chdir(workspace)
        sys.path.insert(0, "")  # and not before: no process of ours may import what lies in a workspace
        enable_collector()
        self._frames.channel = channel
        self._workspace, self._output = workspace, output
        self._process = getpid()
        self._capture.limit = output_limit
        self._capture.open(output)
        try:
            self.serve()
        except (EOFError, OSError):
            os._exit(0)

    def serve(self) -> None:
        """Answer requests until the owner goes away."""
        while True:
            self._answer()

    def _answer(self) -> None:
        request = self._frames.receive()
        if request["type"] != "fork":
            self._survey = None
        answer = self._handlers[request["type"]](request)
        if getpid() != self._process:
            os._exit(0)  # a child the agent forked fell out of its code: it must not speak for us
        if isinstance(answer, str):
            self._frames.send_text(answer)
        elif answer is not None:
            self._frames.send(answer)

    def rehearse(self) -> None:
        """Do what every sandbox does first, through the very objects it will use, and forget it: what this
        settles, such as the adaptive forms of our functions, all sandboxes then share."""
        near, far = socket.socketpair()
        self._process = getpid()
        with near, far:
            here, self._frames.channel = Frames(near), far
            for code in _REHEARSAL:
                here.send({"type": "run", "id": "0", "code": code, "functions": []})
                self._answer()
                here.receive()
        self._frames.channel, self._process = _NO_CHANNEL, 0
        set_handler(_SIGINT, signal.default_int_handler)
        for name in self._names.keys() - self._given:
            del self._names[name]
        linecache.clearcache()
        self._runs = 0

    # ---- running code ----

    def _run(self, request: Mapping[str, Any]) -> str:
        self._current = request["id"]
        for name in request["functions"]:
            if name not in self._names:
                self._names[name] = self._proxy(name)
                self._given.add(name)
        self._runs += 1
        self._interrupted = False
        self._capture.begin()
        # Code that has used up all memory must leave us enough to say so. Never touched, it costs no page.
        try:
            self._reserve = mmap(-1, _RESERVE, _PRIVATE)
        except OSError:
            self._reserve = None
        began, cpu = perf_counter(), _cpu_time()
        attempt = self._attempt(request["code"], f"<run {self._runs}>")
        self._reserve = None
        if getpid() != self._process:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
            os._exit(0)
        stdout, stderr, truncated = self._capture.end()
        # Written and not encoded: each key of a dictionary is an object somewhere in memory, and the encoder
        # makes texts of every length on its way.
        return (
            f'{{"type":"result","id":{quote(self._current)},{attempt},'
            f'"stdout":{quote(stdout)},"stderr":{quote(stderr)},'
            f'"truncated":{"true" if truncated else "false"},'
            f'"duration_s":{perf_counter() - began!r},"cpu_s":{_cpu_time() - cpu!r},'
            f'"memory_bytes":{getrusage(RUSAGE_SELF)[_PEAK] * 1024}}}'
        )

    def _attempt(self, code: str, filename: str) -> str:
        """Run `code`; answers with how it went, as the fields of a JSON object."""
        known_lines[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        set_handler(_SIGINT, self._on_interrupt)
        try:
            try:
                self._listening = True
                value = _execute(code, filename, self._names)
                if value is None:
                    return _FINE
                self._names["_"] = value
                text, plain = _describe(value)
                return (
                    f'{_OK},"value":{quote(text)},"json":{quote(plain) if plain else "null"},"exception":null'
                )
            finally:
                self._listening = False
        except SystemExit as stop:
            status = _exit_status(stop)
            return _failed("error", status, stop) if status else _FINE
        except BaseException as error:
            self._reserve = None
            return _failed(_classify(error), 1, error)

    def _on_interrupt(self, *_: object) -> None:
        self._interrupted = True
        if self._listening:
            raise KeyboardInterrupt("interrupted by the owner")

    # ---- looking around ----

    def _variables(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {}
        for name, value in list(self._names.items()):
            if name.startswith("_") or name in self._given or isinstance(value, types.ModuleType):
                continue
            found[name] = {"type": type(value).__name__, "repr": _short_repr(value, 200)}
        return {"type": "variables", "id": request["id"], "variables": found}

    def _share(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        descriptor = self._frames.descriptors.pop(0)
        answer = {"type": "shared", "id": request["id"], "error": None}
        try:
            self._names[request["name"]] = sharing.read_text(descriptor, request["size"], request["length"])
        except (OSError, MemoryError) as error:
            answer["error"] = str(error) or "there is no memory for it"
        finally:
            os.close(descriptor)
        return answer

    # ---- calling the owner ----

    def _proxy(self, name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        function.__name__ = function.__qualname__ = name
        function.__doc__ = f"Ask the owner of the sandbox to run `{name}`."
        return function

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getpid() != self._process:
            raise RuntimeError(f"{name} can be called from the interpreter only, not from a child process")
        self._calls += 1
        message = {"type": "call", "id": self._current, "call": self._calls, "name": name}
        self._listening = False  # an interrupt in the middle of a frame would tear it
        try:
            self._frames.send({**message, "args": list(args), "kwargs": kwargs})
            while (reply := self._frames.receive()).get("type") == "fork":
                self._fork_in_a_call(reply)
            self._survey = None
        finally:
            self._listening = True
        if self._interrupted:
            raise KeyboardInterrupt("interrupted by the owner")
        if reply.get("error") is not None:
            raise RuntimeError(reply["error"])
        return reply["value"]

    # ---- forking ----

    def _fork_in_a_call(self, request: Mapping[str, Any]) -> None:
        """Between a call and its answer the owner may have us copied. The caller goes on in the original;
        a copy stays here, on top of what it was doing, and answers requests."""
        answer = self._fork(request)
        if answer is None:
            with contextlib.suppress(EOFError, OSError):
                self.serve()
            os._exit(0)
        self._frames.send(answer)

    def _fork(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The parent's answer; None in the copy, which has said what there was to say."""
        given, self._frames.descriptors = self._frames.descriptors, []
        channel, *doors = given
        try:
            # Of several forks in a row only the first looks around: nothing has happened since.
            if self._survey is None or _something_may_stir():
                self._survey = forking.survey(given, self._workspace)
            born = forking.fork(channel, doors, request["id"], self._workspace, self._survey)
        except (OSError, ValueError) as error:
            return {"type": "forked", "id": request["id"], "error": str(error)}
        if born is None:
            return {"type": "forked", "id": request["id"], "error": None}
        self._survey = None
        self._frames.restart(born.channel)
        self._process = getpid()
        self._capture.open(self._output)
        return None


def _something_may_stir() -> bool:
    """Whether code of the agent's may have run since the last request: in a thread, or for a signal."""
    return bool(count_threads()) or any(callable(get_handler(number)) for number in _SIGNALS_OF_THE_AGENT)


def _execute(code: str, filename: str, names: dict[str, Any]) -> Any:
    """Run `code`; the value is that of its last line, when that is an expression."""
    tree: Any = compile(code, filename, "exec", PyCF_ONLY_AST)
    last = None
    if tree.body and isinstance(tree.body[-1], Expr):
        last = Expression(tree.body.pop().value)
    exec(compile(tree, filename, "exec"), names)  # noqa: S102
    if last is None:
        return None
    return eval(compile(last, filename, "eval"), names)  # noqa: S307


def _describe(value: Any) -> tuple[str, str | None]:
    """The value as `repr` shows it, and as JSON where it has such a form."""
    text = _short_repr(value, _REPR_LIMIT)
    try:
        plain = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return text, None
    return text, plain if len(plain) <= _REPR_LIMIT else None


def _short_repr(value: Any, limit: int) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}: repr failed with {type(error).__name__}>"
    return text if len(text) <= limit else text[:limit] + "..."


def _explain(error: BaseException) -> dict[str, str]:
    """The exception and how it came about, with no frame of ours in it."""
    try:
        story = traceback.TracebackException.from_exception(error)
        _leave_out_own_frames(story, depth=0)
        text, message = "".join(story.format()), str(error)
    except BaseException:
        text = message = "the exception could not be shown"
    return {"type": type(error).__name__, "message": message[:_REPR_LIMIT], "traceback": text[-_REPR_LIMIT:]}


def _leave_out_own_frames(story: traceback.TracebackException | None, depth: int) -> None:
    if story is None or depth > 20:
        return
    kept = [frame for frame in story.stack if frame.filename not in _OWN_FILES]
    if kept and kept[0].filename == ast.__file__:
        kept = []  # the parser's own frames say nothing about the agent's line
    story.stack = traceback.StackSummary.from_list(kept)
    for earlier in (story.__cause__, story.__context__):
        _leave_out_own_frames(earlier, depth + 1)


def _classify(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return "out of disk"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return "out of memory"
    if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN and error.filename is None:
        return "out of processes"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "out of processes"
    return "error"


def _failed(outcome: str, status: int, error: BaseException) -> str:
    return (
        f'"outcome":{quote(outcome)},"exit_status":{status},"value":null,"json":null,'
        f'"exception":{encode(_explain(error))}'
    )


def _exit_status(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    return stop.code & 0xFF if isinstance(stop.code, int) else 1


def _cpu_time() -> float:
    own = getrusage(RUSAGE_SELF)
    children = getrusage(RUSAGE_CHILDREN)
    return float(own[_USER] + own[_SYSTEM] + children[_USER] + children[_SYSTEM])
