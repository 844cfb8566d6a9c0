"""Where sessions have one id, tasks whose tests need another are refused, and no answer scores 0 for it."""

from pathlib import Path

import pytest

from envtorch.envs.terminal_env.environment import TerminalEnvironment
from envtorch.envs.terminal_env.harbor import BUNDLED, find_tasks, load_task
from tests.sandbox.elsewhere import NOBODY, run_module
from tests.sandbox.roots import HOST, require_host_root


def test_a_task_whose_tests_need_another_user_is_refused_when_it_begins() -> None:
    done = run_module("tests.envs.terminal_env.ordinary_user_tasks", user=NOBODY)
    if done.returncode == 3:
        pytest.skip(f"an ordinary user can have no writable root here: {done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("the tests of by-others run programs as another user", f"uid {NOBODY}", "/etc/subuid"):
        assert part in done.stdout


def test_root_begins_such_a_task() -> None:
    require_host_root()
    environment = TerminalEnvironment(policy=HOST)
    environment.reset(task="fix-a-failing-test")
    environment.close()


@pytest.mark.parametrize("folder", find_tasks(BUNDLED), ids=lambda folder: folder.name)
def test_a_bundled_task_says_whether_its_tests_need_another_user(folder: Path) -> None:
    uses = "NOBODY" in (folder / "tests/check.py").read_text()
    assert load_task(folder).other_users == uses
