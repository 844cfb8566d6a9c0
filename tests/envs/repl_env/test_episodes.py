"""The contract of an episode: one suite, in two colours, at three places."""

from typing import Any

import pytest

from envtorch.envs.repl_env import REPLAction, REPLEnvironment, REPLObservation, notebook
from envtorch.errors import EnvironmentFailed, InvalidAction, ResetRequired
from envtorch.testing import check_env

from .conftest import Open
from .places import Session


def plain(result: Any) -> dict[str, Any]:
    """A result without what no two runs have in common."""
    seen = result.observation.model_dump()
    seen["result"].pop("execution_time")
    for name in ("execution_time", "total_execution_time"):
        seen["metadata"].pop(name, None)
    return {**seen, "reward": result.reward, "done": result.done}


def test_a_reset_says_what_there_is(env: Session) -> None:
    result = env.reset(context="x" * 600, task_prompt="Count.", max_iterations=7, episode_id="one")
    seen = result.observation
    assert seen.result.stdout == (
        "REPL environment initialized.\n"
        "Context loaded (600 chars). Use 'context' variable to access it.\n"
        "Task: Count.\n"
        "Use answer['content'] to store your answer, and set answer['ready'] = True when done."
    )
    assert (result.reward, result.done, seen.iteration, seen.max_iterations) == (0.0, False, 0, 7)
    assert (seen.context_preview, seen.context_length) == ("x" * 500, 600)
    assert seen.available_variables == ["answer", "context"]
    assert seen.metadata["task_prompt"] == "Count."
    assert seen.metadata["message"] == "Environment ready."
    state = env.state()
    assert (state.episode_id, state.step_count, state.task_prompt) == ("one", 0, "Count.")
    assert (state.context, state.max_iterations, state.final_answer) == ("x" * 600, 7, None)


def test_without_a_context_there_is_none(env: Session) -> None:
    seen = env.reset().observation
    assert (seen.context_preview, seen.context_length, seen.max_iterations) == (None, 0, 30)
    assert "Context loaded" not in seen.result.stdout
    assert seen.available_variables == ["answer"]
    assert "NameError" in (env.execute("context").observation.result.exception or "")


def test_names_stay_for_an_episode(env: Session) -> None:
    env.reset(context="hello")
    first = env.execute("n = len(context)\n_hidden = 1\nprint('n is', n)")
    assert first.observation.result.stdout == "n is 5\n"
    assert first.observation.result.locals_snapshot == {"n": "5"}
    assert first.observation.available_variables == ["answer", "context", "n"]
    assert (first.reward, first.done) == (0.0, False)
    second = env.execute("print('again')\nn + 1").observation.result
    assert (second.stdout, second.locals_snapshot) == ("again\n6", {})
    assert env.get_variable("n").observation.result.stdout == "5\n"
    assert env.list_variables() == ["answer", "context", "n"]
    assert (env.state().step_count, env.state().iteration) == (3, 3)
    assert env.state().total_execution_time > 0
    env.reset()
    assert not env.execute("n").observation.result.success


def test_code_that_fails_costs_a_little_and_ends_nothing(env: Session) -> None:
    env.reset()
    failed = env.execute("kept = 1\n1 / 0")
    result = failed.observation.result
    assert (failed.reward, failed.done, result.success) == (-0.05, False, False)
    assert result.exception == "ZeroDivisionError: division by zero"
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    assert env.execute("kept").observation.result.stdout == "1"


def test_long_output_is_cut_and_says_how_long_it_was(env: Session) -> None:
    env.reset()
    stdout = env.execute("print('y' * 9999)").observation.result.stdout
    assert stdout == "y" * 8192 + "\n... (truncated, total 10000 chars)"


FINAL = [
    ("print('FINAL(42)')", "42"),
    ("FINAL(f'{6 * 7}')", "42"),
    ("print(FINAL('a) b'))", "a) b"),
    ("for x in [1]:\n    FINAL({'a': (1, 2)})", "{'a': (1, 2)}"),
    ("best = 'the gardener'\nprint('FINAL_VAR(best)')", "the gardener"),
    ("best = [1]\nFINAL_VAR('best')", "[1]"),
    ("answer['content'] = 7\nanswer['ready'] = True", "7"),
    ("answer = {'content': 'mine', 'ready': 1}", "mine"),
    ("print('FINAL(printed)')\n1 / 0", "printed"),
]
"""Code that gives an answer, and the answer."""

WORDS = [
    "print('say FINAL(x) when you are done')",
    "'FINAL(quoted)'",
    "print('FINAL(never closed')",
    "print('FINAL_VAR(missing)')",
    "FINAL_VAR('missing')",
    "answer['content'] = 'not ready'",
    "answer = 3",
    "s = 'FINAL(in a string)'",
]
"""Code that speaks of an answer, and gives none."""


def test_a_final_answer_ends_the_episode(env: Session) -> None:
    for code, answer in FINAL:
        env.reset(task_prompt="t")
        result = env.execute(code)
        assert (result.done, result.reward) == (True, 1.0), code
        assert result.observation.metadata["final_answer"] == answer
        assert env.state().final_answer == answer
        with pytest.raises(EnvironmentFailed, match="call reset"):
            env.execute("1")
    assert not env.reset().done


def test_words_about_an_answer_are_none(env: Session) -> None:
    for code in WORDS:
        env.reset()
        result = env.execute(code)
        said = (result.done, result.reward, result.observation.metadata["final_answer"])
        assert said == (False, 0.0, None), code


def test_an_answer_can_be_submitted(env: Session) -> None:
    env.reset()
    env.execute("1")
    result = env.submit_final_answer("it was me")
    assert (result.done, result.reward) == (True, 1.0)
    assert result.observation.result.stdout == "Final answer submitted."
    metadata = result.observation.metadata
    assert (metadata["final_answer"], metadata["total_iterations"]) == ("it was me", 2)
    assert metadata["total_execution_time"] == env.state().total_execution_time


def test_the_last_iteration_runs_nothing(env: Session) -> None:
    env.reset(max_iterations=3)
    assert not env.execute("ran = []").done
    assert not env.execute("answer['content'] = 'so far'").done
    result = env.execute("ran.append(1)")
    assert (result.done, result.reward, result.truncated) == (True, -0.1, True)
    assert not result.observation.result.success
    assert "Maximum iterations (3) reached." in result.observation.result.stderr
    assert result.observation.metadata["final_answer"] == "so far"


def test_an_interpreter_that_dies_ends_the_episode(env: Session) -> None:
    env.reset()
    result = env.execute("import os; os._exit(3)")
    assert (result.done, result.reward) == (True, -0.1)
    assert not result.observation.result.success
    assert "the episode is over" in result.observation.result.stderr
    env.reset()
    assert env.execute("1").observation.result.stdout == "1"


def test_an_object_that_ends_the_interpreter_when_it_is_shown_ends_the_episode(env: Session) -> None:
    env.reset()
    code = "import os\nclass Trap:\n    def __repr__(self): os._exit(1)\ntrap = Trap()"
    result = env.execute(code)
    assert (result.done, result.reward) == (True, -0.1)
    assert "the episode is over" in result.observation.result.stderr


@pytest.mark.parametrize("opened", ["blocking-local", "async-local"], indirect=True)
def test_an_object_that_takes_for_ever_to_be_shown_is_left_out(
    env: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "_PATIENCE_S", 0.5)
    env.reset()
    slow = "class Slow:\n    def __repr__(self):\n        while True: pass\nslow = Slow()"
    assert not env.execute(slow).done
    assert env.execute("1 + 1").observation.result.stdout == "2"


def test_before_a_reset_there_is_nothing(env: Session) -> None:
    with pytest.raises(ResetRequired, match="call reset first"):
        env.step(REPLAction(code="1"))
    with pytest.raises(EnvironmentFailed, match=r"Environment not initialized. Call reset\(\) first."):
        env.state()


def test_rules_hold_wherever_it_runs(opened: Open) -> None:
    env = opened(
        max_output_length=10,
        context_preview_length=3,
        reward_on_success=5.0,
        reward_on_iteration=0.25,
        reward_on_failure=-3.0,
        reward_on_error=-1.0,
    )
    assert env.reset(context="abcdef", max_iterations=4).observation.context_preview == "abc"
    first = env.execute("print('0123456789abc')")
    assert (first.reward, first.observation.result.stdout[:11]) == (0.25, "0123456789\n")
    assert env.execute("1 / 0").reward == -0.75
    assert env.execute("FINAL(1)").reward == 5.0
    env.reset(max_iterations=1)
    assert env.execute("1").reward == -3.0


def test_a_number_of_iterations_that_makes_no_sense_is_refused(env: Session) -> None:
    with pytest.raises(InvalidAction, match="max_iterations"):
        env.reset(max_iterations=0)
    env.reset(max_iterations=1)


def test_a_seed_repeats(env: Session) -> None:
    drawn = []
    for seed in (7, 7, 8):
        env.reset(seed=seed)
        drawn.append(env.execute("import random; random.random()").observation.result.stdout)
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_language_model_is_a_function_inside(env: Session) -> None:
    env.reset()
    assert env.execute("print(llm_query('hello'))").observation.result.stdout == "HELLO\n"
    batch = env.execute("llm_query_batched(['a', 'please fail', 'c'])").observation
    assert batch.result.stdout == '["A", "Error: RuntimeError: the model is indisposed", "C"]'
    assert env.execute("llm_batch(['z'])").observation.result.stdout == '["Z"]'
    usage = env.execute("print(llm_query('fail'))").observation.metadata["usage"]
    assert (usage["calls"], usage["failures"]) == (6, 2)


def test_code_past_its_time_is_stopped_and_the_session_goes_on(env: Session) -> None:
    env.reset()
    env.execute("kept = 1")
    result = env.execute("while True: pass", timeout_s=2.0)
    assert not result.observation.result.success
    assert "was stopped" in result.observation.result.stderr
    assert env.execute("kept").observation.result.stdout == "1"


class Timeless(REPLEnvironment):
    """The environment without a clock: how long code took is all in which two episodes differ."""

    async def step(self, action: REPLAction, timeout_s: float | None = None) -> REPLObservation:
        seen = await super().step(action, timeout_s)
        seen.result.execution_time = 0.0
        self.state.total_execution_time = 0.0
        for name in {"execution_time", "total_execution_time"} & seen.metadata.keys():
            seen.metadata[name] = 0.0
        return seen


ACTIONS = [{"code": code} for code in ("x = [1]", "x.append(len(x)); print(x)", "x[9]", "FINAL_VAR('x')")]


def test_it_keeps_every_promise_of_an_environment(sandboxes: None) -> None:
    report = check_env(Timeless, actions=ACTIONS)
    assert report.findings == (), str(report)


SCRIPT = (
    "import re\nwords = re.findall('[a-z]+', context)",
    "counts = {}\nfor w in words:\n    counts[w] = counts.get(w, 0) + 1",
    "sorted(counts.items())",
    "counts['nothing']",
    "print('ü€😀', '\\ud800')",
    "import sys; print('to stderr', file=sys.stderr)",
    "SHOW_VARS()",
    "class Odd:\n    def __repr__(self): raise ValueError\nodd = Odd()",
    "long = 'z' * 10**6\nbig = list(range(10**5))",
    "llm_query('why')",
    "FINAL_VAR('counts')",
)


def test_the_same_actions_give_the_same_observations_as_at_home(env: Session) -> None:
    """What is compared is all of an observation but the times in it."""
    from .places import open_session

    home = open_session("local", "blocking", None)
    try:
        options = {"context": "the cat and the dog\n" * 50, "task_prompt": "Count words.", "seed": 3}
        assert plain(env.reset(**options)) == plain(home.reset(**options))
        for code in SCRIPT:
            assert plain(env.execute(code)) == plain(home.execute(code)), code
    finally:
        home.close()
