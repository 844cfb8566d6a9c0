"""Do what a page says, in order, in the current directory: `python run_page.py PAGE URL [NEED ...]`.

A Python block with a title is a file; any other is run, `await` included, in one namespace for the page.
A console block is run where the page says `<!-- run -->` above it; a server it starts serves the blocks that
follow. A block below `<!-- needs: something -->` is run where that is there; elsewhere it is compiled, and
what it imports is imported.
"""

import ast
import asyncio
import inspect
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envtorch.errors import MissingExtra

USUAL = "http://127.0.0.1:8000"
FENCE = re.compile(
    r"(?:<!-- (?P<note>[^>]*) -->\n)?^(?P<ticks>`{3,})(?P<info>[^\n`]+)\n(?P<body>.*?)^(?P=ticks)$",
    re.M | re.S,
)
LISTENING = re.compile(r"http://[0-9.:]+")


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


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, url: str, needs: set[str]) -> None:
        self._url = url
        self._needs = needs
        self._names: dict[str, Any] = {"__name__": "page"}
        self._servers: list[subprocess.Popen[str]] = []

    def read(self, blocks: list[Block]) -> None:
        try:
            for block in blocks:
                self._do(block)
        finally:
            for server in self._servers:
                server.terminate()
                server.wait(timeout=120)

    def _do(self, block: Block) -> None:
        body = block.body.replace(USUAL, self._url)
        if block.language == "console" and block.note == "run":
            for line in body.splitlines():
                if line.startswith("$ "):
                    self._command(line[2:])
        elif block.language == "python" and block.title:
            Path(block.title).write_text(body)
        elif block.language == "python" and (block.need is None or block.need in self._needs):
            self._run(body)
        elif block.language == "python":
            try:
                self._run(_imports_of(body))
            except MissingExtra:
                pass  # the package that it needs is not here
            except ModuleNotFoundError as error:
                if error.name != block.need:
                    raise

    def _run(self, source: str) -> None:
        code = compile(source, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, self._names))
        else:
            exec(code, self._names)

    def _command(self, line: str) -> None:
        if line.startswith("envtorch serve"):
            self._serve(line)
            return
        done = subprocess.run(
            shlex.split(line.replace("envtorch ", ENVTORCH, 1)), text=True, capture_output=True
        )
        print(f"$ {line}\n{done.stdout}{done.stderr}")
        assert done.returncode == 0, f"{line} ended with {done.returncode}"

    def _serve(self, line: str) -> None:
        command = [*shlex.split(line.replace("envtorch ", ENVTORCH, 1)), "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._servers.append(server)
        assert server.stderr is not None
        for told in server.stderr:
            if found := LISTENING.search(told):
                self._url = found[0]
                return
        raise AssertionError(f"{line} never said where it listens")


ENVTORCH = f"{sys.executable} -m envtorch.cli "


def _imports_of(source: str) -> str:
    """A program that only imports what this one does."""
    compile(source, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return "\n".join(
        ast.unparse(node) for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)
    )


if __name__ == "__main__":
    page, url, *needs = sys.argv[1:]
    sys.path.insert(0, ".")
    Reader(url, set(needs)).read(blocks_of(Path(page).read_text()))
