"""What README and documentation say, done as a reader would: every Python block and every command."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_eval import models
from tests.docs.run_page import Block, Command, blocks_of, commands_in_prose, commands_of
from tests.docs.scene import NEEDS, unused, why_not_run
from tests.envs.coding_env.conftest import why_no_sandbox
from tests.sandbox.roots import why_not
from tests.support import PATIENCE_S, Running

ROOT = Path(__file__).parents[2]
PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in [
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "src/envtorch/envs").rglob("*.md")),
    ]
    if "design" not in page.parts  # decisions of the past, with the commands of their time
]


def commands(page: str) -> list[Command]:
    text = (ROOT / page).read_text()
    return [one for block in blocks_of(text) for one in commands_of(block)] + commands_in_prose(text)


def every_command() -> Iterator[tuple[str, str]]:
    return ((page, command.line) for page in PAGES for command in commands(page))


DONE = [page for page in PAGES if "```python" in (ROOT / page).read_text() or commands(page)]


def case(page: str) -> Any:
    """A page with commands starts servers, checks and evaluates: that takes its time."""
    runs = any(why_not_run(page, command.line) is None for command in commands(page))
    return pytest.param(page, marks=[pytest.mark.slow] if runs else [])


def answer(messages: list[dict[str, Any]]) -> str:
    """What the model of the pages says: an action of `repl_env`, `coding_env` or an echo."""
    asked = json.dumps(messages)
    if "most frequent" in asked:
        return "```repl\nFINAL(max(set(context.split()), key=context.split().count))\n```"
    coding = "Write a function" in asked
    return json.dumps({"code": "def double(x): return 2 * x"} if coding else {"message": "hello"})


@pytest.fixture(scope="module")
def model_server() -> Iterator[Running]:
    with models(answer) as server:
        yield server


@pytest.mark.parametrize("page", [case(page) for page in DONE])
def test_everything_on_the_page_is_done_as_a_reader_would(
    page: str, echo_server: Running, model_server: Running, tmp_path: Path
) -> None:
    needs = [] if why_no_sandbox() else ["sandbox"]
    needs += [] if why_not() else ["workspace"]
    needs += ["datasets"] if find_spec("datasets") else []
    needs += [program for program in ("curl", "openssl") if shutil.which(program)]
    addresses = [server.url.removeprefix("http://") for server in (echo_server, model_server)]
    command = [sys.executable, "-W", "error", "-m", "tests.docs.run_page", page, *addresses, *needs]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_that_is_not_run_is_on_a_page() -> None:
    assert unused(every_command()) == []


def test_whatever_a_block_needs_is_listed_with_the_test_that_has_it() -> None:
    named = {block.need for page in PAGES for block in blocks_of((ROOT / page).read_text())}
    assert named - {None} == set(NEEDS)
    for told in NEEDS.values():
        assert all((ROOT / path).exists() for path in re.findall(r"tests/[a-z_/.]+py", told))


def test_pages_are_read_as_they_are_written() -> None:
    page = 'x\n<!-- needs: docker -->\n```python title="a.py"\nx = 1\n```\n\n'
    page += "```console\n$ ls \\\n  -l\ntotal 0\n$ pwd\n```\n"
    page += (
        "`envtorch serve a.py`, `envtorch serve TARGET`, `envtorch recording list`, `envtorch serve --web`\n"
    )
    page += "### `envtorch new NAME`\n"
    python, console = blocks_of(page)
    assert python == Block("python", "a.py", "needs: docker", "x = 1\n")
    assert commands_of(console) == [Command("ls    -l", ("total 0",)), Command("pwd")]
    assert commands_in_prose(page) == [Command("envtorch serve a.py")]


def test_every_environment_has_a_readme_that_plays() -> None:
    named = {Path(page).parent.name for page in DONE if page.startswith("src")}
    environments = {path.parent.name for path in (ROOT / "src/envtorch/envs").glob("*/environment.py")}
    assert named >= environments
