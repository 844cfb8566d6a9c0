"""What runs inside the sandbox, beside the agent's code and at its mercy.

The owner sends this file's source and runs it as a module there. Nothing here is trusted: whatever it reports
is the agent's own word, as a printed answer would be.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_SHOWN = 500
_ANSWER_LIMIT = 4 * 1024 * 1024
_OPENERS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    dict: ("{", "}"),
}


class AgentNames:
    """What the agent's names are, which of them are new, and what it has declared."""

    def __init__(
        self, names: dict[str, Any], tell: Callable[..., Any], recurse: Callable[..., Any], forks: bool
    ) -> None:
        self._names = names
        self._tell = tell
        self._recurse = recurse
        self._forks = forks
        self._ours: set[str] = set()
        self._seen: set[str] = set()
        self._final: str | None = None
        self._contexts: Sequence[Any] = ()

    # ---- what the agent may call ----

    def helpers(self) -> dict[str, Callable[..., Any]]:
        return {
            "FINAL": self.declare,
            "FINAL_VAR": self.declare_variable,
            "SHOW_VARS": self.show,
            "format_exc": traceback.format_exc,
            "safe_json_dumps": safe_json_dumps,
            "rlm_query": self.rlm_query,
            "rlm_query_batched": self.rlm_query_batched,
        }

    def declare(self, value: Any = "") -> str:
        """Give the final answer: the episode ends when this code has run."""
        if self._final is None:
            self._final = answer_text(value)
        return f"FINAL({answer_text(value)})"

    def declare_variable(self, name: Any) -> str:
        """Give the value of a variable, named as a string, as the final answer."""
        if not isinstance(name, str):
            return self.declare(name)
        name = name.strip().strip("'\"")
        if name not in self._names or name in self._ours:
            return f"There is no variable {name!r} to answer with. {self.show()}"
        self.declare(self._names[name])
        return f"FINAL_VAR({name})"

    def show(self) -> str:
        """The variables there are, and their types."""
        found = {name: type(self._names[name]).__name__ for name in self._visible()}
        return f"Variables: {found}" if found else "There are no variables yet."

    def rlm_query(
        self, prompt: str, context: Any = None, *, model: str | None = None, inherit: bool = True
    ) -> str:
        """Have a child agent, with a REPL of its own, answer `prompt`; its variable `context` is ours."""
        answers = self.rlm_query_batched([prompt], [context], model=model, inherit=inherit)
        return answers[0]

    def rlm_query_batched(
        self,
        prompts: Sequence[str],
        contexts: Sequence[Any] | None = None,
        *,
        model: str | None = None,
        inherit: bool = True,
    ) -> list[str]:
        """One child agent for each prompt, all at the same time; answers come in the order of the prompts."""
        prompts = [str(prompt) for prompt in prompts]
        given = [None] * len(prompts) if contexts is None else list(contexts)
        if len(given) != len(prompts):
            raise ValueError(f"there are {len(prompts)} prompts and {len(given)} contexts")
        by_value = None if inherit and self._forks else [context_text(context) for context in given]
        # Children that are forks of this process find their context here, as the object it is.
        self._contexts = given
        try:
            answers: list[str] = self._recurse(prompts, by_value, model=model)
        finally:
            self._contexts = ()
        return answers

    # ---- what the owner runs ----

    def open(self, helpers: Sequence[str]) -> None:
        """Put everything in place; what is there now is not the agent's."""
        self._names.update(self.helpers())
        self._ours = {*self.helpers(), *helpers}
        self.begin()

    def begin(self) -> None:
        """Begin an episode, or a child's part in one."""
        self._final = None
        self._names["answer"] = {"content": "", "ready": False}
        self._seen = set(self._visible())

    def become_child(self, number: int) -> None:
        """In a fork: be the child of that number."""
        context = self._contexts[number]
        if context is not None:
            self._names["context"] = context
        self._contexts = ()
        self.begin()
        self.look()

    def look(self, variable: str | None = None) -> None:
        """Tell the owner what there is now, what is new, and what has been declared."""
        visible = list(self._visible())
        fresh = [name for name in visible if name not in self._seen]
        self._seen.update(fresh)
        answer = self._names.get("answer")
        answer = answer if isinstance(answer, dict) else {}
        final, self._final = self._final, None
        if final is None and variable is not None and variable in visible:
            final = answer_text(self._names[variable])
        report = {
            "variables": sorted(visible),
            "fresh": {name: short_repr(self._names[name]) for name in fresh},
            "final": final,
            "ready": bool(answer.get("ready")),
            "content": answer_text(answer.get("content", "")),
        }
        self._tell(report)

    def _visible(self) -> Iterator[str]:
        for name, value in list(self._names.items()):
            if name.startswith("_") or name in self._ours or isinstance(value, type(sys)):
                continue
            yield name


def answer_text(value: Any) -> str:
    return str(value)[:_ANSWER_LIMIT]


def context_text(context: Any) -> str | None:
    """A context for a child that is no fork of ours."""
    text = context if context is None or isinstance(context, str) else repr(context)
    if text is not None and len(text) > _ANSWER_LIMIT:
        raise ValueError(f"a context of {len(text)} characters can be inherited, and not be sent")
    return text


def safe_json_dumps(value: Any) -> str:
    """JSON, with `repr` for what JSON cannot say."""
    return json.dumps(value, default=repr)


def short_repr(value: Any) -> str:
    """How `repr` begins, without making all of it: a context may have gigabytes."""
    page = Page(_SHOWN)
    try:
        page.show(value)
    except Full:
        pass
    except Exception as error:
        return f"<{type(value).__name__}: repr failed with {type(error).__name__}>"
    text = "".join(page.pieces)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


class Full(Exception):
    """There is more on a page than it has room for."""


class Page:
    """Takes what `repr` would give, piece by piece, until it is full."""

    def __init__(self, room: int) -> None:
        self.pieces: list[str] = []
        self._room = room

    def write(self, piece: str) -> None:
        self.pieces.append(piece)
        self._room -= len(piece)
        if self._room < 0:
            raise Full

    def show(self, value: Any) -> None:
        kind = type(value)
        if kind in (str, bytes, bytearray) and len(value) > self._room:
            self.write(repr(_beginning(value, self._room + 1)))
        elif kind in _OPENERS and value:
            self._show_items(value, kind)
        else:
            self.write(repr(value))

    def _show_items(self, value: Any, kind: type) -> None:
        left, right = _OPENERS[kind]
        self.write(left)
        for number, item in enumerate(value):
            self.write(", " if number else "")
            self.show(item)
            if kind is dict:
                self.write(": ")
                self.show(value[item])
        self.write(f",{right}" if kind is tuple and len(value) == 1 else right)


def _beginning(value: Any, length: int) -> Any:
    """The first characters, and those quotes that decide how `repr` quotes the whole."""
    quotes = ("'", '"') if isinstance(value, str) else (b"'", b'"')
    return value[:length] + type(value)().join(quote for quote in quotes if quote in value)


agent_names: AgentNames
"""The one record of this sandbox, once it is installed."""


def install(names: dict[str, Any], helpers: Sequence[str], forks: bool) -> None:
    """Make the record of the agent's names, and keep it where the agent's own names do not hide it."""
    global agent_names
    agent_names = AgentNames(names, names["_repl_tell"], names["_repl_recurse"], forks)
    agent_names.open(helpers)
    agent_names.look()
