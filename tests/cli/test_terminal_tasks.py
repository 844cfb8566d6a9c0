"""`envtorch new --task` and `envtorch check` of tasks."""

import json
from pathlib import Path

from typer.testing import CliRunner

from envtorch.cli import main
from envtorch.cli.exits import Exit
from tests.sandbox.roots import require_host_root


def test_a_new_task_is_sound_and_a_broken_one_is_found(tmp_path: Path) -> None:
    require_host_root()
    made = CliRunner().invoke(main, ["new", "--task", "my-task", "--in", str(tmp_path)])
    assert made.exit_code == Exit.OK, made.output
    checked = CliRunner().invoke(main, ["check", str(tmp_path / "my-task")])
    assert checked.exit_code == Exit.OK, checked.output
    assert "my-task (solution 1, nothing 0)" in checked.output
    (tmp_path / "my-task/solution/solve.sh").write_text("true\n")
    found = CliRunner().invoke(main, ["check", str(tmp_path), "--json"])
    assert found.exit_code == Exit.FOUND_WANTING
    (told,) = json.loads(found.stdout)
    assert "the solution scores 0" in told["problems"][0]


def test_a_name_that_cannot_be_a_task_is_refused(tmp_path: Path) -> None:
    for name in ("My Task", "../x"):
        refused = CliRunner().invoke(main, ["new", "--task", name, "--in", str(tmp_path)])
        assert refused.exit_code == Exit.MISUSED
