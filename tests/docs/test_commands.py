"""Commands in the README and the documentation: every `envtorch` line is one that the program takes."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from envtorch.cli import main
from tests.docs.run_page import blocks_of
from tests.support import PATIENCE_S, Running

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ADVICE = re.compile(r"pip install '?envtorch\[")


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if "design" in page.parts:
            continue  # decisions of the past, with the commands of their time
        for block in blocks_of(page.read_text()):
            if block.language not in ("sh", "console", "bash"):
                continue
            for line in block.body.replace("\\\n", " ").splitlines():
                command = line.removeprefix("$ ").strip()
                if command.startswith("envtorch "):
                    yield page.relative_to(ROOT).as_posix(), command


@pytest.mark.parametrize(("page", "command"), list(commands()))
def test_an_envtorch_command_is_one_that_the_program_takes(page: str, command: str) -> None:
    words = shlex.split(command, comments=True)
    cut = next((words.index(word) for word in ("|", ">", "&") if word in words), len(words))
    parser: Any = typer.main.get_command(main)
    rest = words[1:cut]
    while hasattr(parser, "commands"):
        name, *rest = rest
        assert name in parser.commands, f"{page}: there is no command {name!r}"
        parser = parser.commands[name]
    with parser.make_context(name, rest):  # raises for a wrong option or argument
        pass


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README uses curl")
def test_the_curl_commands_of_the_readme_play_an_episode(echo_server: Running, tmp_path: Path) -> None:
    (block,) = [b for b in blocks_of((ROOT / "README.md").read_text()) if "curl" in b.body]
    script = re.sub(r"(?m)^\$ ", "", block.body).replace("http://127.0.0.1:8000", echo_server.url)
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert '"echoed_message":"Hello"' in done.stdout
    assert '"step_count":1' in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_an_extra_is_installed_from_what_there_is(page: Path) -> None:
    assert ADVICE.search(page.read_text()) is None, "there is no release: write pip install '.[extra]'"
