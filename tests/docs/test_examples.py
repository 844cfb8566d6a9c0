"""Every environment in README and docs is checked, served and played; one with tools also over MCP."""

import ast
import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from envtorch.client import GenericEnvClient
from envtorch.testing.sampling import sample
from tests.docs.run_page import blocks_of
from tests.support import PATIENCE_S

ROOT = Path(__file__).parents[2]
ENVTORCH = [sys.executable, "-m", "envtorch.cli"]
BASES = {"Environment", "MCPEnvironment"}


@dataclass(frozen=True)
class Example:
    """An environment class in a page, and the source that defines it."""

    page: str
    name: str
    source: str


def examples() -> Iterator[Example]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        blocks = [block.body for block in blocks_of(page.read_text()) if block.language == "python"]
        for body in blocks:
            tree = compile(body, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            kept = [node for node in tree.body if isinstance(node, KEPT)]
            for node in kept:
                if isinstance(node, ast.ClassDef) and any(_name(base) in BASES for base in node.bases):
                    source = "\n\n".join(ast.unparse(one) for one in kept)
                    yield Example(str(page.relative_to(ROOT)), node.name, source)


KEPT = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _name(base: ast.expr) -> str:
    named = base.value if isinstance(base, ast.Subscript) else base
    return named.id if isinstance(named, ast.Name) else ""


EXAMPLES = list(examples())


@contextmanager
def served(target: str, directory: Path) -> Iterator[str]:
    command = [*ENVTORCH, "serve", target, "--port", "0"]
    server = subprocess.Popen(command, cwd=directory, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = server.stderr.readline()
        assert " on http://" in said, said + server.stderr.read()
        yield said.split(" on ")[1].split()[0]
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_S)


def test_the_examples_are_found() -> None:
    assert {example.name for example in EXAMPLES} >= {"GuessingGame", "Basket", "Deck", "Cart", "Clock"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.page}:{example.name}")
def test_an_example_is_checked_served_and_played(example: Example, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(example.source)
    target = f"example.py:{example.name}"
    checked = subprocess.run(
        [*ENVTORCH, "check", target],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with served(target, tmp_path) as url:
        schema: dict[str, Any] = httpx.get(f"{url}/schema", timeout=PATIENCE_S).json()["action"]
        has_tools = "tool_name" in schema["properties"]
        action = {"type": "list_tools"} if has_tools else sample(schema, random.Random(3)) or {}
        with GenericEnvClient(url) as env:
            env.reset(**({"task": "test/0"} if "TaskSet(" in example.source else {"seed": 3}))
            assert isinstance(env.step(action).observation, dict)
            assert env.state()["step_count"] == (0 if has_tools else 1)
        if has_tools:
            asyncio.run(calls_its_tools(url))


async def calls_its_tools(url: str) -> None:
    """An agent with a client of its own lists the tools and calls the first one twice in one session."""
    from fastmcp import Client

    async with Client(f"{url}/mcp") as agent:
        tool = (await agent.list_tools())[0]
        schema = getattr(tool, "input_schema", None) or tool.inputSchema  # FastMCP 4, and 3
        arguments = sample(schema, random.Random(3)) or {}
        answers = [(await agent.call_tool(tool.name, arguments)).data for _ in range(2)]
    assert answers == [1, 2], "the session keeps what the first call did"
