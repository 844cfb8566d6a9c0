"""What commands do with directories of tasks: `envtorch check TASKS`, `envtorch new --task NAME`."""

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from envtorch.cli.exits import Exit
from envtorch.errors import ConfigurationError

if TYPE_CHECKING:
    from envtorch.envs.terminal_env.harbor import GradingPlan

__all__ = ["check_tasks", "holds_tasks", "new_task"]


def holds_tasks(target: str) -> bool:
    """Whether a target is a directory with a `task.toml`, or of such directories."""
    folder = Path(target)
    return folder.is_dir() and ((folder / "task.toml").is_file() or any(folder.glob("*/task.toml")))


def check_tasks(
    folder: Path, *, as_json: bool, root: str | None = None, grading: "GradingPlan | None" = None
) -> Exit:
    """Check every task below a directory, and print what was found. `root` is where their environments are
    built: the machine's own, unless another is given. `grading` is the plan of tasks that choose none.
    Raises `ConfigurationError` for a `root` that cannot be used."""
    from envtorch.envs.terminal_env.environment import DEFAULT_POLICY
    from envtorch.envs.terminal_env.harbor import find_tasks
    from envtorch.envs.terminal_env.task_checks import check_task
    from envtorch.sandbox.root_stores import root_store_for

    if root is not None:
        root_store_for(root)  # a wrong one is a mistake in the command, and not in every task
    policy = DEFAULT_POLICY if root is None else dataclasses.replace(DEFAULT_POLICY, root=root)
    console = Console(highlight=False, soft_wrap=True)
    findings = []
    for path in find_tasks(folder):
        found = check_task(path, policy, grading=grading)
        findings.append(found)
        if not as_json:
            told = f"solution {_shown(found.solution_reward)}, nothing {_shown(found.nothing_reward)}"
            mark = "[green]ok[/green]  " if found.ok else "[red]fail[/red]"
            console.print(f"{mark} {escape(found.name)} [dim]({told})[/dim]")
            for problem in found.problems:
                console.print(f"     {escape(problem)}")
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(found) | {"ok": found.ok} for found in findings], indent=2))
    return Exit.OK if all(found.ok for found in findings) else Exit.FOUND_WANTING


def _shown(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:g}"


_TASK = {
    "task.toml": """schema_version = "1.4"

[task]
name = "mine/NAME"
description = "Say in one line what there is to do"

[environment]
build_timeout_sec = 60
memory_mb = 512
storage_mb = 256

[agent]
timeout_sec = 300

[verifier]
timeout_sec = 60

[metadata.envtorch]
other_users = true  # tests/check.py runs the agent's program as another user
""",
    "instruction.md": "Write `/app/greet.py`, so that `python3 /app/greet.py NAME` prints `hello, NAME`.\n",
    "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY readme.txt /app/\n",
    "environment/readme.txt": "The agent works here.\n",
    "tests/test.sh": """#!/bin/bash
# The reward is 0 until check.py has come to its end and writes 1 to descriptor 3.
echo 0 > /logs/verifier/reward.txt
exec python3 -I /tests/check.py 3<> /logs/verifier/reward.txt
""",
    "tests/check.py": """# The agent's program is never imported here, and how it ends says nothing.
# It runs in a process of its own, as a user who can neither read these tests nor write a reward.
# What it prints is compared.
import secrets
import subprocess

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}


def ask(name):
    command = ["python3", "-I", "/app/greet.py", name]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, **NOBODY).stdout.strip()


for name in ("Ada", secrets.token_hex(8)):  # one that the agent cannot have known
    assert ask(name) == f"hello, {name}", name
open(3, "w").write("1")
""",
    "solution/solve.sh": """#!/bin/bash
set -e
echo 'import sys; print(f"hello, {sys.argv[1]}")' > /app/greet.py
""",
}


def new_task(name: str, directory: Path) -> None:
    """Make a new task that is already sound. Raises `ConfigurationError` if the place is taken."""
    if not re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", name):
        raise ConfigurationError(f"{name!r} cannot be a task's name: use small letters, digits, - and _")
    folder = directory / name
    if folder.exists():
        raise ConfigurationError(f"{folder} is there already: choose another name, or remove it first")
    for place, text in _TASK.items():
        path = folder / place
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("NAME", name), encoding="utf-8")
            if path.suffix == ".sh":
                path.chmod(0o755)
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be written: {error.strerror}",
                next_step="choose a directory that you may write to: envtorch new --task NAME --in DIR",
            ) from error
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[green]{folder}[/green] is a task of {len(_TASK)} files, in Harbor's format. Next:\n")
    console.print(
        f"  [bold]envtorch check {folder}[/bold]  [dim]plays its solution, and nothing at all[/dim]"
    )
