"""Grading cannot be tampered with: every cheat scores zero, and honest work is paid."""

import asyncio
import time

import pytest

from envtorch.sandbox import AsyncSandbox, AsyncSubmission, Policy, Sandbox, Submission, Verdict
from envtorch.sandbox.grading import judge
from tests.support import PATIENCE_S

from .cheats import CHEATS, CHECKER, GRADED_COPY_CHEATS, HIDDEN_WORD, HONEST, Cheat

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

    def check(frozen: Submission) -> dict[str, object]:
        first = (frozen.run("counter").json(), frozen.read_file("count.txt"))
        frozen.run("time.sleep(0.1)")
        again = (frozen.run("counter").json(), frozen.read_file("count.txt"))
        frozen.run("counter = -1; open('count.txt', 'w').write('graded')")
        frozen.write_file("count.txt", "graded")
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
        "10**400",
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
    for large in (10**400, 10**5000, {"score": 10**400}):
        assert "cannot be understood" in judge(large).why


def test_a_failing_function_is_the_owners_error(sandbox: Sandbox) -> None:
    def broken(frozen: Submission) -> float:
        raise LookupError("the checker itself is wrong")

    with pytest.raises(LookupError):
        sandbox.grade(broken)
    assert sandbox.run("1").json() == 1


def replaced(submission: Submission) -> float:
    """Writes hidden tests, time and again, and runs what it has written: 1.0 when they were tampered with."""
    submission.exec(["python3", "-c", "import solution"], timeout_s=3.0)
    for number in range(30):
        submission.write_file("test_hidden.py", f"print({number} + 41)")
        done = submission.exec(["python3", "-I", "test_hidden.py"])
        if done.stdout.strip() != str(number + 41).encode():
            return 1.0
        if submission.read_file("test_hidden.py") != f"print({number} + 41)".encode():
            return 1.0
    return 0.0


@pytest.mark.parametrize("cheat", GRADED_COPY_CHEATS, ids=lambda cheat: cheat.name)
def test_nothing_of_the_agents_runs_beside_the_files_of_a_graded_copy(policy: Policy, cheat: Cheat) -> None:
    with Sandbox(policy) as sandbox:
        sandbox.run(cheat.code, timeout_s=5)
        assert sandbox.grade(replaced) == Verdict(score=0.0, passed=False)


def test_a_helper_of_an_earlier_fork_cannot_reach_a_graded_copy(forkable: Sandbox) -> None:
    """The helper lives in a pid namespace below that of the sandbox which is graded."""
    with forkable.fork()[0] as fork:
        fork.run("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(30)\n    os._exit(0)")

        def check(submission: Submission) -> float:
            seen = submission.exec(["sh", "-c", "ls /proc | grep -c '^[0-9]'"]).stdout
            # The init, an idle interpreter, the shell and the two programs in its pipe.
            return replaced(submission) + float(int(seen) > 5)

        assert forkable.grade(check).score == 0.0
        assert fork.grade(check).score == 0.0


def test_the_interpreter_of_a_graded_copy_stands_still_between_runs(forkable: Sandbox) -> None:
    forkable.run("import signal, time\nbeats = 0\ndef beat(*_):\n    global beats\n    beats += 1")
    forkable.run("signal.signal(signal.SIGALRM, beat); signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)")

    def check(submission: Submission) -> dict[str, object]:
        begun = submission.run("signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01); beats = 0; beats").json()
        submission.exec(["sleep", "0.5"])
        return {"score": 1.0, "details": submission.run("beats").json() - begun}

    verdict = forkable.grade(check)
    assert verdict.score == 1.0
    assert verdict.details < 10, "fifty beats in half a second, if it had gone on"


FILL = """
import os, time
try:
    while True:
        if os.fork() == 0: time.sleep(1000)
except OSError:
    pass
"""
HOSTILE_STATES = {
    "nested folders": "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')",
    "long nested names": "import os\nfor _ in range(60): os.mkdir('d' * 200); os.chdir('d' * 200)",
    "full process table": FILL,
    "a fork that never returns": "import os\nos.register_at_fork(after_in_child=__import__('signal').pause)",
    "a fork that says nothing": "from guest import guest_wire as wire\nwire.frame = lambda *a: b''",
    "a fork that says nonsense": "from guest import guest_wire as w\nw.frame = lambda *a: b'\\xff' * 1000",
    "an interpreter that is gone": "import os\nos._exit(0)",
}


@pytest.mark.parametrize("state", HOSTILE_STATES, ids=list(HOSTILE_STATES))
def test_grading_answers_whatever_state_the_agent_has_left(policy: Policy, state: str) -> None:
    with Sandbox(policy) as sandbox:
        sandbox.run("open('answer.txt', 'w').write('42')")
        sandbox.run(HOSTILE_STATES[state], timeout_s=5)
        began = time.monotonic()
        verdict = sandbox.grade("float(submission.read_file('answer.txt') == b'42')")
        assert verdict.score == 1.0, verdict
        function = sandbox.grade(lambda submission: submission.run("1 + 1").ok)
        assert function.score in (0.0, 1.0)
        assert time.monotonic() - began < PATIENCE_S
        assert "answer.txt" in {file.path for file in sandbox.list_files()}


def test_what_was_not_handed_in_scores_zero_and_the_reason_is_told(sandbox: Sandbox) -> None:
    verdict = sandbox.grade(lambda submission: submission.read_file("answer.txt") == b"42")
    assert (verdict.score, verdict.passed) == (0.0, False)
    assert "answer.txt" in verdict.why


def test_an_async_function_judges_a_frozen_copy(policy: Policy) -> None:
    async def check(submission: AsyncSubmission) -> bool:
        await submission.write_file("test.py", "print(open('answer.txt').read())")
        return (await submission.exec(["python3", "test.py"])).stdout == b"42\n"

    async def main() -> Verdict:
        async with AsyncSandbox(policy) as sandbox:
            await sandbox.write_file("answer.txt", "42")
            return await sandbox.grade(check)

    assert asyncio.run(main()).score == 1.0
