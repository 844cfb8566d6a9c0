"""What an agent sees of the coding environment, whichever executor runs its code."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from envtorch.env import Environment
from envtorch.envs.coding_env import CodeAction, CodeObservation, CodingEnv
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.envs.coding_env.models import Ending
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.errors import ConfigurationError, EnvironmentFailed
from envtorch.extras import install_command
from envtorch.sandbox import Outcome, Policy
from envtorch.server import create_app
from envtorch.testing import check_env
from envtorch.transforms import NullTransform
from tests.support import PATIENCE_S, running

from .conftest import SMALL


def run(env: CodingEnv, code: str) -> CodeObservation:
    return env.step(CodeAction(code=code)).observation


def test_state_is_kept_within_an_episode_and_gone_after_it(any_env: CodingEnv) -> None:
    assert run(any_env, "x = 40").exit_code == 0
    seen = run(any_env, "print(x + 2)\nx + 2")
    assert (seen.stdout.strip(), seen.stderr, seen.exit_code, seen.outcome) == ("42", "", 0, "ok")
    assert seen.value == "42"
    first = any_env.state()
    assert (first.step_count, first.last_exit_code) == (2, 0)
    any_env.reset(episode_id="second")
    failed = run(any_env, "x")
    assert failed.exit_code == 1
    assert failed.outcome == "error"
    assert "x" in failed.stderr
    state = any_env.state()
    assert (state.episode_id, state.step_count, state.last_exit_code) == ("second", 1, 1)


def test_code_that_fails_does_not_end_the_episode(any_env: CodingEnv) -> None:
    run(any_env, "kept = 'here'")
    for code in ("1 / 0", "def (", "raise KeyError('k')"):
        result = any_env.step(CodeAction(code=code))
        assert result.observation.outcome == "error", code
        assert result.observation.stderr, code
        assert not result.done
    assert run(any_env, "print(kept)").stdout.strip() == "here"


def test_an_error_shows_the_agents_frames_and_no_others(env: CodingEnv) -> None:
    run(env, "def inner():\n    raise ValueError('deep')")
    seen = run(env, "import sys; print('before', file=sys.stderr)\ninner()")
    lines = seen.stderr.splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "ValueError: deep"
    frames = [line for line in lines if line.lstrip().startswith("File ")]
    assert len(frames) == 2
    assert "inner" in frames[1]
    assert "envtorch" not in seen.stderr


def test_files_are_those_of_the_episode(env: CodingEnv) -> None:
    run(env, "open('note.txt', 'w').write('hi')")
    assert run(env, "open('note.txt').read()").value == "'hi'"
    env.reset()
    assert run(env, "import os; os.listdir('.')").value == "[]"


def test_a_status_of_exit_is_the_exit_code(env: CodingEnv) -> None:
    assert run(env, "x = 1; import sys; sys.exit(7)").exit_code == 7
    assert run(env, "sys.exit(0)").exit_code == 0
    assert run(env, "x").value == "1"


def test_a_seed_makes_random_repeat_itself(env: CodingEnv) -> None:
    def draw(seed: int) -> str | None:
        env.reset(seed=seed)
        return run(env, "import random; random.random()").value

    assert draw(7) == draw(7) != draw(8)


def test_text_that_is_no_unicode_costs_nothing(env: CodingEnv) -> None:
    seen = run(env, "kept = 1; raise ValueError('\\ud800')")
    assert seen.outcome == "error"
    assert run(env, "'\\ud800'").exit_code == 0
    assert run(env, "kept").value == "1"


def test_a_rubric_gives_the_reward_and_forgets_at_reset() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, action: CodeAction, observation: CodeObservation) -> float:
            self.calls += 1
            return self.calls if observation.value == "4" and action.code else 0.0

        def reset(self) -> None:
            self.calls = 0

    with CodingEnv.local(lambda: CodingEnvironment(policy=SMALL, rubric=Counting())) as env:
        assert env.reset().reward == 0.0
        assert [env.step(CodeAction(code=code)).reward for code in ("4", "5", "2 + 2")] == [1, 0, 3]
        env.reset()
        assert env.step(CodeAction(code="4")).reward == 1


def test_without_rubric_and_transform_there_is_no_reward(sandboxes: None) -> None:
    with CodingEnv.local(lambda: CodingEnvironment(policy=SMALL)) as env:
        assert env.reset().reward is None
        for code in ("1", "import os", "x ="):
            result = env.step(CodeAction(code=code))
            assert result.reward is None
            assert "last_code" not in result.observation.metadata
    with CodingEnv.local(lambda: CodingEnvironment(policy=SMALL, transform=NullTransform())) as env:
        env.reset()
        assert env.step(CodeAction(code="1")).reward is None


def test_openenvs_rewards_are_asked_for_by_name(sandboxes: None) -> None:
    with CodingEnv.local(lambda: CodingEnvironment(policy=SMALL, transform="openenv")) as env:
        assert env.reset().reward == 0.0
        rewards = [env.step(CodeAction(code=code)).reward for code in ("x = 1", "import os")]
        assert rewards == [pytest.approx(0.1), pytest.approx(-0.9)]
    with pytest.raises(ConfigurationError, match="'openenv'"):
        CodingEnvironment(transform="magic")  # type: ignore[arg-type]


def test_an_executor_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'sandbox' or 'smolagents'"):
        CodingEnvironment(executor="docker")  # type: ignore[arg-type]


def test_a_policy_that_cannot_be_kept_is_refused_with_the_reason(sandboxes: None) -> None:
    impossible = Policy(namespaces=False, require={"fork"})  # type: ignore[arg-type]
    with (
        CodingEnv.local(lambda: CodingEnvironment(policy=impossible)) as env,
        pytest.raises(EnvironmentFailed),
    ):
        env.reset()


def test_an_executor_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smolagents.local_python_executor", None)
    monkeypatch.delitem(sys.modules, "envtorch.sandbox.smolagents_executor", raising=False)
    app = create_app(lambda: CodingEnvironment(executor="smolagents"), CodeAction, CodeObservation)
    why = pytest.raises(EnvironmentFailed, match=re.escape(install_command("smolagents")))
    with running(app) as served, CodingEnv(served.url) as env, why:
        env.reset()


def test_every_ending_a_sandbox_knows_can_travel() -> None:
    assert set(get_args(Ending)) == {outcome.value for outcome in Outcome}


ACTIONS = [
    {"code": code} for code in ("x = [1]", "x.append(len(x)); print(x)", "x[9]", "import random", "sum(x)")
]


@pytest.mark.parametrize("environment", [CodingEnvironment, EchoEnvironment])
def test_it_keeps_every_promise_of_an_environment(
    environment: type[Environment[Any, Any, Any]], sandboxes: None
) -> None:
    actions = ACTIONS if environment is CodingEnvironment else None
    report = check_env(environment, actions=actions)
    assert report.findings == (), str(report)


def test_the_command_that_checks_environments_likes_it(sandboxes: None) -> None:
    command = [sys.executable, "-m", "envtorch.cli", "check", "coding_env"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout


def test_the_example_runs(sandboxes: None) -> None:
    example = Path(__file__).parents[3] / "examples/local_coding_env.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "ZeroDivisionError" in done.stdout
    assert "timed out" in done.stdout


def test_a_client_loads_no_sandbox_and_no_server() -> None:
    code = "import sys, envtorch.envs.coding_env; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    heavy = (
        "envtorch.sandbox",
        "envtorch.server",
        "envtorch.envs.coding_env.environment",
        "pyseccomp",
        "fastapi",
    )
    assert [name for name in loaded if name.startswith(heavy)] == []
