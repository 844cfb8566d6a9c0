"""What tasks of public sets do: they install something, use plugins of pytest, keep copies of inputs."""

import shutil
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envtorch.cli import main
from envtorch.cli.exits import Exit
from envtorch.envs.terminal_env import BashAction, SubmitAction
from envtorch.envs.terminal_env.environment import TerminalEnvironment
from envtorch.envs.terminal_env.episode_tasks import EpisodeTask
from envtorch.envs.terminal_env.harbor import GradingPlan, load_task
from envtorch.envs.terminal_env.task_checks import check_task
from tests.envs.terminal_env.made_tasks import make_task
from tests.sandbox.roots import HOST, require_host_root

INSTALL = "printf '#!/bin/sh\\necho hello\\n' > /usr/local/bin/greeter; chmod +x /usr/local/bin/greeter"
"""What a solution does that installs a program."""
TEST = '[ "$(greeter)" = hello ]; echo $((1 - $?)) > /logs/verifier/reward.txt'


def test_a_task_that_installs_something_passes_unedited_when_a_plan_is_given(tmp_path: Path) -> None:
    require_host_root()
    make_task(tmp_path / "install", TEST, **{"solution/solve.sh": INSTALL})
    found = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert found.exit_code == Exit.FOUND_WANTING
    assert "did not see what was made of /usr/local/bin/greeter" in found.output
    assert "--grading agent" in found.output
    passed = CliRunner().invoke(main, ["check", str(tmp_path), "--grading", "agent"])
    assert passed.exit_code == Exit.OK, passed.output


def test_a_server_chooses_the_plan_and_the_grade_says_what_to_write(tmp_path: Path) -> None:
    require_host_root()
    make_task(tmp_path / "install", TEST)
    usual = TerminalEnvironment(policy=HOST, tasks=tmp_path)
    trusting = TerminalEnvironment(policy=HOST, tasks=tmp_path, grading="agent")
    grades = []
    for environment in (usual, trusting, trusting.fork()):
        environment.reset(task="install")
        environment.step(BashAction(INSTALL))
        done = environment.step(SubmitAction())
        grades.append((done.reward, done.metadata["grade"]["plan"], done.metadata["grade"]["advice"]))
        environment.close()
    assert grades[0][:2] == (0.0, "image")
    assert 'TerminalEnvironment(tasks=..., grading="agent")' in grades[0][2]
    assert grades[1:] == [(1.0, "agent", "")] * 2


def test_the_option_is_for_tasks() -> None:
    refused = CliRunner().invoke(main, ["check", "echo_env", "--grading", "agent"])
    assert "--grading is for directories of tasks" in refused.output
    assert CliRunner().invoke(main, ["check", "tasks", "--grading", "agnet"]).exit_code == Exit.MISUSED


PLUGIN = "def pytest_addoption(parser):\n    parser.addoption('--report-to')\n"
DOCKERFILE = "FROM debian:12\nWORKDIR /app\nCOPY site /opt/site\nENV PYTHONPATH=/opt/site\n"
PLANS: tuple[GradingPlan, ...] = ("image", "agent")
ENTRY = "[pytest11]\nreporting = reporting_plugin\n"
METADATA = "Metadata-Version: 2.1\nName: a\nVersion: 1\n"
FORGED = f"""mkdir /opt/site/forged-1.dist-info; cd /opt/site
printf '{METADATA}' > forged-1.dist-info/METADATA
printf '[pytest11]\nforged = forged\n' > forged-1.dist-info/entry_points.txt
echo 'import os; os._exit(0)' > forged.py"""


def copy_distributions(target: Path, *names: str) -> None:
    for name in names:
        for file in metadata.files(name) or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), target / file)


def test_installed_plugins_of_pytest_work_and_those_that_an_agent_adds_do_not(tmp_path: Path) -> None:
    require_host_root()
    if shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("this machine has no python3 for all")
    test = (
        "python3 -m pytest --report-to /logs/verifier/report.json /tests/test_it.py\n"
        "echo $(($? == 0)) > /logs/verifier/reward.txt\n"
    )
    files = {
        "environment/Dockerfile": DOCKERFILE,
        "environment/site/reporting_plugin.py": PLUGIN,
        "environment/site/reporting-1.dist-info/entry_points.txt": ENTRY,
        "environment/site/reporting-1.dist-info/METADATA": METADATA,
        "tests/test_it.py": "def test_it():\n    assert open('/app/answer').read() == '42'\n",
        "solution/solve.sh": "printf 42 > /app/answer",
    }
    folder = make_task(tmp_path / "t", test, **files)
    copy_distributions(folder / "environment/site", "pytest", "pluggy", "iniconfig", "packaging", "pygments")
    found = check_task(folder, HOST)
    assert found.ok, found.problems
    forged = {}
    for plan in PLANS:
        episode = EpisodeTask.of(load_task(folder, grading=plan), HOST)
        with episode.open() as workspace:
            workspace.run(FORGED)
            forged[episode.task.grading] = episode.grade(workspace)
    assert {plan: graded.reward for plan, graded in forged.items()} == {"image": 0.0, "agent": 1.0}
    assert set(forged["image"].hidden) == {"/opt/site/forged-1.dist-info", "/opt/site/forged.py"}


def test_a_copy_of_an_input_that_the_instruction_names_is_no_leak(tmp_path: Path) -> None:
    require_host_root()
    text = "an input of the agent's, and of the tests\n"
    files = {
        "instruction.md": "Copy /app/input.txt to /app/output.txt.\n",
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY input.txt hints.txt /app/\n",
        "environment/input.txt": text,
        "environment/hints.txt": "an answer that the tests compare with\n",
        "tests/input.txt": text,
        "tests/expected.txt": "an answer that the tests compare with\n",
        "solution/solve.sh": "cp /app/input.txt /app/output.txt",
    }
    test = "cmp /tests/input.txt /app/output.txt; echo $(($? == 0)) > /logs/verifier/reward.txt"
    found = check_task(make_task(tmp_path / "t", test, **files), HOST)
    leak = "the agent can read environment/hints.txt, which is the same as tests/expected.txt"
    assert found.problems == (leak,)
