"""The live interpreter: runs the agent's code, keeps its state, answers on the sandbox's one socket.

The agent shares this process and may break anything in it. That is why nothing here is trusted by the
owner: limits, deadlines and isolation are kept by the kernel and by the init, never by this file.
"""

import ast
import builtins
import contextlib
import errno
import gc
import json
import linecache
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

from . import guest_wire as wire
from . import interpreter_fork, text_file
from .capture import DISK_ERRORS, Capture

_OWN_FILES = (__file__, interpreter_fork.__file__)
_REPR_LIMIT = 64 * 1024
_MOST_VARIABLES = 5000
_RESERVE = 3 * 1024 * 1024
_REHEARSAL = ("1 / 0", "print(x)", "x + 1", "x = 1") * 9
"""Often enough for the adaptive interpreter to have specialised our functions."""
_SIGNALS_OF_THE_AGENT = [number for number in signal.valid_signals() if number != signal.SIGINT]
_FINE: Mapping[str, Any] = {
    "outcome": "ok",
    "exit_status": 0,
    "value": None,
    "json": None,
    "exception": None,
    "parsed": True,
}


class NotPython(Exception):
    """The text that was to be run is no Python; the cause says why."""


class Interpreter:
    """The agent's namespace and the conversation about it."""

    def __init__(self) -> None:
        """As the zygote makes it, once: every sandbox begins with a copy."""
        sys.argv = [""]
        self._frames = wire.Frames()
        self._workspace = self._output = ""
        self._capture = Capture(0)
        self._process = 0
        self._runs = 0
        self._calls = 0
        self._current = ""
        self._listening = False
        self._interrupted = False
        self._survey: interpreter_fork.Survey | None = None
        self._reserve: mmap.mmap | None = None
        self._handlers: dict[str, Callable[[Mapping[str, Any]], bytes | None]] = {
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
        os.chdir(workspace)
        sys.path.insert(0, "")  # and not before: no process of ours may import what lies in a workspace
        gc.enable()
        self._frames.restart(channel)
        self._workspace, self._output = workspace, output
        self._process = os.getpid()
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
        if os.getpid() != self._process:
            os._exit(0)  # a child the agent forked fell out of its code: it must not speak for us
        if answer is not None:
            self._frames.send(answer)

    def rehearse(self) -> None:
        """Do in the zygote what every sandbox does first, and forget it: what this loads and specialises, all
        sandboxes share."""
        near, far = socket.socketpair()
        self._process = os.getpid()
        with near, far:
            self._frames.restart(far)
            for code in _REHEARSAL:
                request = {"type": "run", "id": "0" * 16, "code": code, "functions": []}
                data = wire.encode(request).encode()
                near.sendall(struct.pack(">I", len(data)) + data)
                self._answer()
                near.recv(1 << 16)
        self._frames.restart(None)
        self._process = 0
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in self._names.keys() - self._given:
            del self._names[name]
        linecache.clearcache()
        self._runs = 0

    # ---- running code ----

    def _run(self, request: Mapping[str, Any]) -> bytes:
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
            self._reserve = mmap.mmap(-1, _RESERVE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            self._reserve = None
        began, cpu = time.perf_counter(), _cpu_time()
        attempt = self._attempt(request["code"], f"<run {self._runs}>")
        self._reserve = None
        if os.getpid() != self._process:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
            os._exit(0)
        stdout, stderr, truncated = self._capture.end()
        result = {
            **attempt,
            "stdout": stdout,
            "stderr": stderr,
            "truncated": truncated,
            "duration_s": time.perf_counter() - began,
            "cpu_s": _cpu_time() - cpu,
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        return wire.frame("result", self._current, result)

    def _attempt(self, code: str, filename: str) -> Mapping[str, Any]:
        """Run `code`; answers with how it went, as fields of a result."""
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            try:
                self._listening = True
                value = _execute(code, filename, self._names)
                if value is None:
                    return _FINE
                self._names["_"] = value
                text, plain = _describe(value)
                return {**_FINE, "value": text, "json": plain}
            finally:
                self._listening = False
        except NotPython as error:
            self._reserve = None
            cause = error.__cause__ or error
            return {**_failed(_classify(cause), 1, cause), "parsed": False}
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

    def _variables(self, request: Mapping[str, Any]) -> bytes:
        found = {}
        for name, value in list(self._names.items()):
            if name.startswith("_") or name in self._given or isinstance(value, types.ModuleType):
                continue
            found[name] = {"type": type(value).__name__, "repr": _short_repr(value, 200)}
            if len(found) == _MOST_VARIABLES:
                break
        return wire.frame("variables", request["id"], {"variables": found})

    def _share(self, request: Mapping[str, Any]) -> bytes:
        descriptor = self._frames.descriptors.pop(0)
        problem = None
        try:
            text = text_file.read_text(descriptor, request["size"], request["length"])
            self._names[request["name"]] = text
        except (OSError, MemoryError) as error:
            problem = str(error) or "there is no memory for it"
        finally:
            os.close(descriptor)
        return wire.frame("shared", request["id"], {"error": problem})

    # ---- calling the owner ----

    def _proxy(self, name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        function.__name__ = function.__qualname__ = name
        function.__doc__ = f"Ask the owner of the sandbox to run `{name}`."
        return function

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError(f"{name} can be called from the interpreter only, not from a child process")
        self._calls += 1
        message = {"call": self._calls, "name": name, "args": list(args), "kwargs": kwargs}
        data = wire.frame("call", self._current, message)
        if len(data) > wire.CALL_LIMIT:
            raise ValueError(
                f"the arguments of {name} take {len(data)} bytes, and {wire.CALL_LIMIT} are allowed"
            )
        if wire.has_too_many_values(data):
            raise ValueError(f"the arguments of {name} have more than {wire.VALUE_LIMIT} values")
        self._listening = False  # an interrupt in the middle of a frame would tear it
        try:
            self._frames.send(data)
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

    def _fork(self, request: Mapping[str, Any]) -> bytes | None:
        """The parent's answer; None in the copy, which has said what there was to say."""
        given, self._frames.descriptors = self._frames.descriptors, []
        channel, *doors = given
        try:
            # Of several forks in a row only the first looks around: nothing has happened since.
            if self._survey is None or _something_may_stir():
                self._survey = interpreter_fork.survey(given, self._workspace)
            born = interpreter_fork.fork(channel, doors, request["id"], self._workspace, self._survey)
        except (OSError, ValueError) as error:
            return wire.frame("forked", request["id"], {"error": str(error)})
        if born is None:
            return wire.frame("forked", request["id"], {"error": None})
        self._survey = None
        self._frames.restart(born.channel)
        self._process = os.getpid()
        self._capture.open(self._output)
        return None


def _something_may_stir() -> bool:
    """Whether code of the agent's may have run since the last request: in a thread, or for a signal."""
    threads = len(os.listdir("/proc/self/task"))
    return threads > 1 or any(callable(signal.getsignal(number)) for number in _SIGNALS_OF_THE_AGENT)


def _execute(code: str, filename: str, names: dict[str, Any]) -> Any:
    """Run `code`; the value is that of its last line, when that is an expression. Raises `NotPython`."""
    try:
        tree = ast.parse(code, filename)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotPython from error
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body[-1].value)
        del tree.body[-1]
    exec(compile(tree, filename, "exec"), names)  # noqa: S102
    return None if last is None else eval(compile(last, filename, "eval"), names)  # noqa: S307


def _describe(value: Any) -> tuple[str, str | None]:
    """The value as `repr` shows it, and as JSON where it has such a form."""
    text = _short_repr(value, _REPR_LIMIT)
    try:
        plain = json.dumps(value, allow_nan=False, ensure_ascii=False)
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


def _failed(outcome: str, status: int, error: BaseException) -> Mapping[str, Any]:
    return {**_FINE, "outcome": outcome, "exit_status": status, "exception": _explain(error)}


def _exit_status(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    return stop.code & 0xFF if isinstance(stop.code, int) else 1


def _cpu_time() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
