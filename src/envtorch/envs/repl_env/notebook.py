"""A live interpreter with the agent's variables: runs one block after another, and says what came of each."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envtorch.envs.repl_env import inside
from envtorch.envs.repl_env.finals import Final, find_final
from envtorch.envs.repl_env.models import CodeBlockResult
from envtorch.errors import EnvironmentFailed, SessionLost
from envtorch.sandbox import AsyncSandbox, Outcome, Policy, Result, SharedText

__all__ = ["Block", "Notebook", "cut"]

_PATIENCE_S = 5.0
"""How long showing the agent's own objects may take: their `__repr__` is its code too."""

_MOST_NAMES = 10_000
_LONG_TEXT = 65536

Function = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Block:
    """What one block of code did, uncut."""

    result: CodeBlockResult
    final: str | None = None
    """The answer, when the block declared one."""
    alive: bool = True
    outcome: str = "ok"


@dataclass(slots=True)
class Seen:
    """What was last known of the names inside."""

    variables: list[str] = field(default_factory=list)
    content: str = ""
    """What `answer["content"]` holds."""


class Notebook:
    """One sandbox with the helpers of a REPL in it. Whoever opens it closes it."""

    def __init__(self, sandbox: AsyncSandbox, functions: Mapping[str, Function]) -> None:
        self._sandbox = sandbox
        self._report: dict[str, Any] | None = None
        self._unsettled = False
        self._first = ""
        """What is to be run before anything else."""
        self.seen = Seen()
        self._bind(functions)

    @classmethod
    async def open(
        cls,
        policy: Policy,
        functions: Mapping[str, Function],
        *,
        context: str | None = None,
        seed: int | None = None,
    ) -> "Notebook":
        """A fresh interpreter; `functions` are what it may call of ours, `_repl_recurse` among them."""
        notebook = cls(await AsyncSandbox.open(policy), functions)
        try:
            if context is not None:
                await notebook.load(context)
            await notebook._install([name for name in functions if not name.startswith("_")], seed)
        except BaseException:
            await notebook.close()
            raise
        return notebook

    @property
    def alive(self) -> bool:
        return self._sandbox.alive

    @property
    def can_fork(self) -> bool:
        return self._sandbox.alive and self._sandbox.report().protects("fork")

    async def load(self, context: str) -> None:
        """Define `context`. Sandboxes forked from this one share its characters copy-on-write."""
        with await asyncio.to_thread(SharedText, context) as text:
            await self._sandbox.share("context", text)

    async def run(self, code: str, *, timeout_s: float) -> Block:
        """Run code and look at what is there afterwards. Raises `EnvironmentFailed` when nothing is left."""
        await self._settle()
        if self._first:
            first, self._first = self._first, ""
            self._note(await self._command(first))
        self._unsettled = True
        result = await self._sandbox.run(code, timeout_s=timeout_s)
        self._unsettled = False
        stdout = _shown(result)
        if not result.alive:
            return Block(_described(result, stdout, {}, timeout_s), None, False, result.outcome.value)
        # A value that merely looks like an answer is quoted here, and so it is none.
        declared = await _find_final(stdout)
        variable = declared.value if declared is not None and declared.is_variable else None
        report = await self._look(variable)
        final = report.get("final")
        if declared is not None and not declared.is_variable and final is None:
            final = declared.value
        if final is None and report.get("ready"):
            final = self.seen.content
        described = _described(result, stdout, report.get("fresh", {}), timeout_s)
        if not self._sandbox.alive:  # an object of the agent's ended it when it was looked at
            described.stderr += f"{_LIMITS[Outcome.CRASHED]} {_GONE}\n"
        return Block(described, final, self._sandbox.alive, result.outcome.value)

    async def fork(self, count: int) -> list["Notebook"]:
        """Copies, made while the code inside waits for a function of ours; each needs `become_child`."""
        made = await self._sandbox.fork(count)
        return [Notebook(sandbox, {}) for sandbox in made]

    async def twin(self, functions: Mapping[str, Function]) -> "Notebook":
        """A copy of a notebook at rest."""
        (sandbox,) = await self._sandbox.fork(1)
        copy = Notebook(sandbox, functions)
        copy.seen = Seen(list(self.seen.variables), self.seen.content)
        return copy

    def become_child(self, number: int, functions: Mapping[str, Function]) -> None:
        """Take up, before anything is run, the context that the parent's call had for this child."""
        self._bind(functions)
        self._first = f"become_child({number})"

    async def close(self) -> None:
        await self._sandbox.close()

    # ---- inside ----

    def _bind(self, functions: Mapping[str, Function]) -> None:
        for name, function in {"_repl_tell": self._hear, **functions}.items():
            self._sandbox.expose(name, function)

    async def _hear(self, report: Any) -> None:
        self._report = report if isinstance(report, dict) else None

    async def _install(self, helpers: Sequence[str], seed: int | None) -> None:
        source = inspect.getsource(inside)
        code = (
            "import sys, types\n"
            "sys.modules['_repl'] = types.ModuleType('_repl')\n"
            f"exec(compile({source!r}, '<repl>', 'exec'), sys.modules['_repl'].__dict__)\n"
            f"sys.modules['_repl'].install(globals(), {list(helpers)!r}, {self.can_fork})\n"
            "del sys, types\n"
        )
        if seed is not None:
            code += f"__import__('random').seed({int(seed)})\n"
        done = await self._sandbox.run(code)
        if not done.ok:
            raise EnvironmentFailed(f"the REPL could not be set up: {done.exception or done.outcome}")
        self._note(self._report or {})

    async def _look(self, variable: str | None) -> dict[str, Any]:
        """What the record of names reports; empty when the agent has broken it."""
        return self._note(await self._command(f"look({variable!r})"))

    def _note(self, report: dict[str, Any]) -> dict[str, Any]:
        """Remember what was seen. A report is the agent's word, and may be anything."""
        names = report.get("variables")
        if isinstance(names, list):
            content = report.get("content")
            known = [clean(name) for name in names[:_MOST_NAMES] if isinstance(name, str)]
            self.seen = Seen(known, clean(content) if isinstance(content, str) else "")
        return _checked(report)

    async def _command(self, call: str) -> dict[str, Any]:
        self._report = None
        try:
            await self._sandbox.run(
                f"__import__('sys').modules['_repl'].agent_names.{call}", timeout_s=_PATIENCE_S
            )
        except SessionLost:
            return {}
        report, self._report = self._report, None
        return report or {}

    async def _settle(self) -> None:
        """Wait for code whose step was cancelled: it has been interrupted, and may refuse to end."""
        if self._unsettled and self._sandbox.alive:
            await self._sandbox.run("", timeout_s=self._sandbox.policy.grace_s)
            self._unsettled = False
        if not self._sandbox.alive:
            raise EnvironmentFailed("the episode is over, because its interpreter is gone: call reset")


async def _find_final(text: str) -> Final | None:
    """The answer that was printed. Long texts are searched in a thread: the loop belongs to all sessions."""
    return find_final(text) if len(text) < _LONG_TEXT else await asyncio.to_thread(find_final, text)


def cut(text: str, limit: int) -> str:
    """The text, or as much of it as `limit` allows and a note of how much there was."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n... (truncated, total {len(text)} chars)"


def _checked(report: dict[str, Any]) -> dict[str, Any]:
    """A report, in the shape it should have."""
    fresh, final = report.get("fresh"), report.get("final")
    return {
        "fresh": _texts(fresh) if isinstance(fresh, dict) else {},
        "final": clean(final) if isinstance(final, str) else None,
        "ready": report.get("ready") is True,
    }


def _texts(given: dict[Any, Any]) -> dict[str, str]:
    pairs = list(given.items())[:_MOST_NAMES]
    return {clean(k): v for k, v in pairs if isinstance(k, str) and isinstance(v, str)}


def _shown(result: Result) -> str:
    """What was printed, and the value of the last expression on a line of its own."""
    if result.value is None:
        return clean(result.stdout)
    value = result.value if result.value_json is None else result.value_json
    between = "" if not result.stdout or result.stdout.endswith("\n") else "\n"
    return clean(f"{result.stdout}{between}{value}")


def _described(result: Result, stdout: str, fresh: dict[str, str], limit_s: float) -> CodeBlockResult:
    notes = [result.stderr]
    exception = None
    if result.exception is not None:
        exception = f"{result.exception.type}: {result.exception.message}"
        notes.append(result.exception.traceback if result.alive else "")
    notes.append(_explanation(result, limit_s))
    if not result.ok and exception is None:
        exception = result.outcome.value
    stderr = "\n".join(note.rstrip("\n") for note in notes if note)
    return CodeBlockResult(
        stdout=stdout,
        stderr=clean(f"{stderr}\n" if stderr else ""),
        locals_snapshot={name: clean(text) for name, text in fresh.items()},
        execution_time=result.duration_s,
        success=result.ok,
        exception=None if exception is None else clean(exception),
    )


_GONE = "Its variables are gone, and the episode is over."
_LIMITS = {
    Outcome.OUT_OF_MEMORY: "The code needed more memory than it may have.",
    Outcome.OUT_OF_PROCESSES: "The code started more processes and threads than it may.",
    Outcome.OUT_OF_DISK: "The code wrote more to disk than it may.",
    Outcome.OUTPUT_TRUNCATED: "The code printed more than is kept.",
    Outcome.CRASHED: "The interpreter came to a sudden end.",
}


def _explanation(result: Result, limit_s: float) -> str:
    """One sentence about a limit, and what is left."""
    said = _LIMITS.get(result.outcome, "")
    if result.outcome is Outcome.TIMED_OUT:
        said = f"The code ran for longer than {limit_s:g} s and was stopped."
    if not result.alive:
        return f"{said} {_GONE}".lstrip()
    return f"{said} Its variables are kept." if said else ""


def clean(text: str) -> str:
    """Text that every wire can carry: no lone surrogates."""
    return text.encode("utf-8", "replace").decode()
