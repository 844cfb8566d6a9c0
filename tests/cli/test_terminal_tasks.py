"""`envtorch new --task` and `envtorch check` of tasks."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envtorch.cli import main
from envtorch.cli.exits import Exit
from envtorch.envs.terminal_env.episode_tasks import EpisodeTask
from envtorch.envs.terminal_env.harbor import load_task
from tests.sandbox.roots import HOST, require_host_root


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


PROGRAMS = {
    "it ends well at once": "import os; os._exit(0)",
    "it leaves": "raise SystemExit(0)",
    "it writes to the descriptor": "import os; os.write(3, b'1')",
    "it writes to its parent's": "import os; open(f'/proc/{os.getppid()}/fd/3', 'w').write('1')",
    "it writes the reward": "open('/logs/verifier/reward.json', 'w').write('1')",
    "it knows one name": "print('hello, Ada')",
    "it reads the tests": "print(open('/tests/check.py').read())",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_tests_of_a_new_task_pay_no_program_that_grades_itself(tmp_path: Path, program: str) -> None:
    require_host_root()
    CliRunner().invoke(main, ["new", "--task", "my-task", "--in", str(tmp_path)])
    episode = EpisodeTask.of(load_task(tmp_path / "my-task"), HOST)
    with episode.open() as workspace:
        workspace.write_file("/app/greet.py", PROGRAMS[program].encode())
        graded = episode.grade(workspace)
    assert (graded.reward, graded.why) == (0.0, "")


def test_a_name_that_cannot_be_a_task_is_refused(tmp_path: Path) -> None:
    for name in ("My Task", "../x"):
        refused = CliRunner().invoke(main, ["new", "--task", name, "--in", str(tmp_path)])
        assert refused.exit_code == Exit.MISUSED


def test_a_task_that_is_no_text_is_found_wanting(tmp_path: Path) -> None:
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise/task.toml").write_bytes(b"\xff\xfe")
    found = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert found.exit_code == Exit.FOUND_WANTING
    assert "task.toml or instruction.md is no UTF-8" in found.output


BROKEN = {
    "a-second-stage": ("environment/Dockerfile", b"FROM a\nFROM b\n", "envtorch rootfs from-dockerfile"),
    "a-missing-file": ("environment/Dockerfile", b"FROM a\nCOPY nothing /\n", "add it, or mend the line"),
    "no-text": ("environment/Dockerfile", b"FROM a\nRUN echo \xff\n", "is no UTF-8"),
    "no-toml": ("task.toml", b"[environment\n", "mend that line"),
}


def test_a_broken_task_is_named_and_all_others_are_checked(tmp_path: Path) -> None:
    require_host_root()
    for name in ("0-first", *BROKEN, "z-last"):
        CliRunner().invoke(main, ["new", "--task", name, "--in", str(tmp_path)])
    for name, (place, text, _) in BROKEN.items():
        (tmp_path / name / place).write_bytes(text)
    found = CliRunner().invoke(main, ["check", str(tmp_path), "--json"])
    assert found.exit_code == Exit.FOUND_WANTING, found.output
    told = {one["name"]: one for one in json.loads(found.stdout)}
    assert [name for name, one in told.items() if one["ok"]] == ["0-first", "z-last"]
    for name, (place, _, what_to_do) in BROKEN.items():
        (problem,) = told[name]["problems"]
        assert f"{name}/{place}" in problem
        assert what_to_do in problem


def test_a_root_that_is_not_there_is_a_mistake_of_the_command(tmp_path: Path) -> None:
    CliRunner().invoke(main, ["new", "--task", "my-task", "--in", str(tmp_path)])
    refused = CliRunner().invoke(main, ["check", str(tmp_path), "--root", "none-of-this-name"])
    assert refused.exit_code == Exit.MISUSED
    assert "none-of-this-name" in refused.output


def test_a_misspelt_key_is_found_with_the_name_that_is_meant(tmp_path: Path) -> None:
    require_host_root()
    CliRunner().invoke(main, ["new", "--task", "my-task", "--in", str(tmp_path)])
    file = tmp_path / "my-task/task.toml"
    file.write_text(file.read_text().replace("timeout_sec = 300", "timout_sec = 300"))
    found = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert found.exit_code == Exit.FOUND_WANTING
    assert "[agent] timout_sec is not a key of the format" in found.output
    assert "write timeout_sec" in found.output
    assert "(solution 1, nothing 0)" in found.output  # it is played all the same
