"""Do what a page says, in order, in the current directory.

`python -m tests.docs.run_page PAGE SERVER MODEL [NEED ...]`: the addresses are of an echo server and a model.

A block with a title is a file. A Python block is run, `await` included, in one namespace for the page. A
command is run, and prints what the block says; commands in the prose come last. A server that a command
starts serves what follows. A block below `<!-- needs: something -->` is done where that is there; elsewhere
Python is compiled, and what it imports is imported. `tests/docs/scene.py` lists the commands not run.
"""

import ast
import asyncio
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envtorch.errors import MissingExtra
from tests.docs.page_shell import PageShell
from tests.docs.scene import missing, set_up, why_not_run

ROOT = Path(__file__).parents[2]
SHELLS = ("console", "sh", "bash")
FENCE = re.compile(
    r"(?:<!-- (?P<note>[^>]*) -->\n)?^(?P<ticks>`{3,})(?P<info>[^\n`]+)\n(?P<body>.*?)^(?P=ticks)$",
    re.M | re.S,
)
PROSE = re.compile(r"^(?!#).*", re.M)
MENTIONED = re.compile(r"`(envtorch (?>(?:recording |k8s )?[a-z0-9-]+) [^`-][^`]*)`")
PLACEHOLDER = re.compile(r"\b[A-Z]+\b")


@dataclass(frozen=True)
class Block:
    """One fenced block, and what the page says of it."""

    language: str
    title: str | None
    note: str
    body: str

    @property
    def need(self) -> str | None:
        kind, _, what = self.note.partition(": ")
        return what if kind == "needs" else None


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page that name a language."""
    found = []
    for match in FENCE.finditer(page):
        language, _, rest = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        found.append(
            Block(language, title[1] if title else None, (match["note"] or "").strip(), match["body"])
        )
    return found


@dataclass(frozen=True)
class Command:
    """One command of a block, and the lines that the page says it prints."""

    line: str
    output: tuple[str, ...] = ()


def commands_of(block: Block) -> list[Command]:
    """The commands of a shell block: in a `console` block after `$ `, the other lines being their output."""
    if block.language not in SHELLS:
        return []
    found: list[Command] = []
    joined = block.body.replace("\\\n", " ")
    for line in joined.splitlines():
        if block.language != "console" or line.startswith("$ "):
            found.append(Command(line.removeprefix("$ ")))
        else:
            found[-1] = Command(found[-1].line, (*found[-1].output, line))
    return found


def commands_in_prose(page: str) -> list[Command]:
    """The commands that sentences name in full: with an argument, and nothing to be filled in."""
    text = "\n".join(PROSE.findall(FENCE.sub("", page)))
    found = dict.fromkeys(match[1] for match in MENTIONED.finditer(text))
    return [Command(line) for line in found if PLACEHOLDER.search(line) is None]


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, page: str, addresses: dict[str, str], needs: set[str]) -> None:
        self._page = page
        self._needs = needs
        self._names: dict[str, Any] = {"__name__": "page"}
        self._shell = PageShell(addresses)

    def read(self) -> None:
        text = (ROOT / self._page).read_text()
        try:
            for block in blocks_of(text):
                self._do(block)
            for command in commands_in_prose(text):
                self._command(command)
        finally:
            self._shell.close()

    def _do(self, block: Block) -> None:
        body = self._shell.here(block.body)
        there = block.need is None or block.need in self._needs
        if block.title:
            Path(block.title).write_text(body)
        elif block.language == "python" and there:
            self._run(body)
        elif block.language == "python":
            try:
                self._run(_imports_of(body))
            except MissingExtra:
                pass  # the package that it needs is not here
            except ModuleNotFoundError as error:
                if error.name != block.need:
                    raise
        elif there:
            for command in commands_of(block):
                self._command(command)

    def _run(self, source: str) -> None:
        code = compile(source, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, self._names))
        else:
            exec(code, self._names)

    def _command(self, command: Command) -> None:
        if why_not_run(self._page, command.line) is not None or missing(command.line, self._needs):
            return
        said = self._shell.run(command.line)
        for line in command.output:
            assert line in said, f"{command.line} does not print {line!r}, but: {said}"


def _imports_of(source: str) -> str:
    """A program that only imports what this one does."""
    compile(source, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return "\n".join(
        ast.unparse(node) for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)
    )


def main() -> None:
    page, server, model, *needs = sys.argv[1:]
    sys.path.insert(0, ".")
    set_up(Path())
    addresses = {"127.0.0.1:8000": server, "127.0.0.1:8080": model, "127.0.0.1:11434": model}
    Reader(page, addresses, set(needs)).read()


if __name__ == "__main__":
    main()
