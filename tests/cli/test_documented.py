"""docs/cli.md and the commands themselves tell the same story; so do exit codes, and completion works."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from envtorch.cli import main
from envtorch.cli.exits import Exit
from envtorch.extras import install_command
from tests.support import PATIENCE_S

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text()
ENVTORCH = [sys.executable, "-m", "envtorch.cli"]


def commands(group: Any, path: str = "envtorch") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(typer.main.get_command(main)))
SECTIONS = {
    match[1]: match[2] for match in re.finditer(r"(?ms)^### `(envtorch [^`]+)`\n(.*?)(?=^##|\Z)", PAGE)
}


def test_every_command_has_its_section_and_no_other_has() -> None:
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_its_section(name: str) -> None:
    shown = [parameter for parameter in COMMANDS[name].params if not getattr(parameter, "hidden", False)]
    options = [option for parameter in shown for option in parameter.opts if option[:2] == "--"]
    assert [option for option in options if option != "--help" and option not in SECTIONS[name]] == []
    told = set(re.findall(r"`(--[a-z-]+)", SECTIONS[name]))
    assert told <= set(options), "an option that is not there is told of"


def test_exit_codes_are_told() -> None:
    told = {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", PAGE)}
    assert told == {int(code) for code in Exit}


@pytest.mark.parametrize("name", ["", *(name.removeprefix("envtorch ") for name in COMMANDS)])
def test_help_says_what_it_does(name: str) -> None:
    from typer.testing import CliRunner

    said = CliRunner().invoke(main, [*name.split(), "--help"])
    assert said.exit_code == 0, said.output
    assert "Usage:" in said.output


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["check", "no.such.module:Thing"], Exit.MISUSED, "no module"),
        (["check", "http://127.0.0.1:9"], Exit.UNREACHABLE, "Next: is the server up?"),
        (["bench", "echo_env", "--sessions", "many"], Exit.MISUSED, "1,8,64"),
        (["replay", "nowhere.jsonl"], Exit.MISUSED, "there is no recording"),
        (["recording", "list", "."], Exit.MISUSED, "--record"),
        (["push", "nothing", "--to", "me/x", "--dry-run"], Exit.MISUSED, "neither a directory nor"),
        (
            ["serve", "echo_env", "--port", "0", "--isolation", "magic"],
            Exit.MISUSED,
            "isolation is 'process'",
        ),
    ],
)
def test_an_error_is_a_sentence_and_a_code(
    arguments: list[str], code: Exit, told: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*ENVTORCH, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S
    )
    assert done.returncode == code, done.stderr
    assert told in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


WITHOUT_TEXTUAL = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *given: None if name == "textual" else real(name, *given)
sys.argv = ["envtorch", "play", "echo_env"]
from envtorch.cli import main
main()
"""


def test_a_missing_extra_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TEXTUAL], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == Exit.MISSING_EXTRA
    assert install_command("play") in done.stderr


def test_completion_offers_the_commands() -> None:
    environ = {
        **os.environ,
        "_ENVTORCH_COMPLETE": "complete_bash",
        "COMP_WORDS": "envtorch re",
        "COMP_CWORD": "1",
    }
    program = "import sys; sys.argv = ['envtorch']; from envtorch.cli import main; main(prog_name='envtorch')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=PATIENCE_S
    )
    assert {"replay", "recording"} <= set(done.stdout.split())


def test_a_module_is_found_beside_the_person_who_names_it(tmp_path: Path) -> None:
    source = "from envtorch.envs.echo_env.environment import EchoEnvironment as Mine\n"
    (tmp_path / "beside_me.py").write_text(source)
    program = Path(sys.executable).parent / "envtorch"
    done = subprocess.run(
        [program, "check", "beside_me:Mine"], capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
