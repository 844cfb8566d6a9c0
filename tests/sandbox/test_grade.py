"""Grading cannot be tampered with: every cheat scores zero, and honest work is paid."""

import pytest

from envtorch.sandbox import Policy, Sandbox, Verdict
from envtorch.sandbox.grading import judge

from .cheats import CHEATS, CHECKER, HIDDEN_WORD, HONEST, Cheat

FILES = {"hidden.txt": HIDDEN_WORD}


def test_honest_work_is_paid(sandbox: Sandbox) -> None:
    sandbox.run(HONEST)
    verdict = sandbox.grade(CHECKER, files=FILES)
    assert verdict.score == 1.0, verdict
    assert verdict.passed


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_scores_zero(policy: Policy, cheat: Cheat) -> None:
    with Sandbox(policy) as sandbox:
        sandbox.run(cheat.code, timeout_s=2)
        verdict = sandbox.grade(CHECKER, files=FILES, timeout_s=10)
        assert verdict.score == 0.0, verdict
        assert not verdict.passed


def test_a_function_judges_a_frozen_copy(forkable: Sandbox) -> None:
    forkable.run(
        "import threading, time\ncounter = 0\n"
        "def count():\n    global counter\n    while True:\n"
        "        counter += 1; open('count.txt', 'w').write(str(counter)); time.sleep(0.001)\n"
        "threading.Thread(target=count, daemon=True).start()\ntime.sleep(0.05)"
    )

    def check(frozen: Sandbox) -> dict[str, object]:
        first = (frozen.run("counter").json(), frozen.read_file("count.txt"))
        frozen.run("time.sleep(0.1)")
        again = (frozen.run("counter").json(), frozen.read_file("count.txt"))
        frozen.run("counter = -1; open('count.txt', 'w').write('graded')")
        return {"score": 1.0 if first == again and first[0] > 0 else 0.0, "why": "frozen"}

    assert forkable.grade(check) == Verdict(score=1.0, passed=True, why="frozen")
    after = forkable.run("counter").json()
    assert forkable.run("time.sleep(0.1); counter").json() > after > 0  # thawed: it counts on
    assert forkable.read_file("count.txt") != b"graded"


def test_the_checkers_files_are_never_in_the_agents_sandbox(sandbox: Sandbox) -> None:
    sandbox.run("x = 1")
    verdict = sandbox.grade(
        "{'score': float(open('secret-check.py').read() == 'hidden' and 'secret-check.py' not in "
        "[f['path'] for f in submission.list_files()])}",
        files={"secret-check.py": "hidden"},
    )
    assert verdict.score == 1.0, verdict
    assert sandbox.list_files() == []


def test_a_dead_sandbox_is_graded_by_its_files(sandbox: Sandbox) -> None:
    sandbox.run("open('answer.txt', 'w').write('42')\nimport os; os._exit(0)")
    assert sandbox.grade("float(submission.read_file('answer.txt') == b'42')").score == 1.0


@pytest.mark.parametrize(
    "script",
    [
        "1 / 0",
        "import os; os._exit(0)",
        "'1.0'",
        "float('nan')",
        "float('inf')",
        "None",
        "{'score': 1, 'extra': 2}",
        "object()",
        "[1.0]",
    ],
)
def test_a_checker_that_says_nothing_sensible_scores_zero(sandbox: Sandbox, script: str) -> None:
    verdict = sandbox.grade(script)
    assert (verdict.score, verdict.passed) == (0.0, False)
    assert verdict.why


def test_verdicts_are_read_strictly() -> None:
    assert judge(True) == Verdict(score=1.0, passed=True)
    assert judge(0) == Verdict(score=0.0, passed=False)
    assert judge({"score": 0.5, "passed": False, "details": [1]}).details == [1]
    assert judge("1").score == 0.0


def test_a_failing_function_is_the_owners_error(sandbox: Sandbox) -> None:
    def broken(frozen: Sandbox) -> float:
        raise LookupError("the checker itself is wrong")

    with pytest.raises(LookupError):
        sandbox.grade(broken)
    assert sandbox.run("1").json() == 1
