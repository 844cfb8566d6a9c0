"""What a run answers, and what stays between runs."""

import threading

import pytest

from envtorch.errors import SessionLost
from envtorch.sandbox import Executor, Outcome, Policy, Sandbox, report
from tests.support import PATIENCE_S


def test_output_value_and_state(sandbox: Sandbox) -> None:
    first = sandbox.run("import sys\nx = 40\nprint('out')\nprint('err', file=sys.stderr)\n{'x': x + 2}")
    assert first.outcome is Outcome.OK
    assert (first.stdout, first.stderr) == ("out\n", "err\n")
    assert first.value == "{'x': 42}"
    assert first.json() == {"x": 42}
    assert first.duration_s > 0
    assert first.memory_bytes > 1_000_000
    assert sandbox.run("x").json() == 40


def test_a_statement_has_no_value(sandbox: Sandbox) -> None:
    result = sandbox.run("x = 1")
    assert result.value is None
    with pytest.raises(ValueError, match="no value"):
        result.json()


def test_a_value_that_is_no_json_is_shown(sandbox: Sandbox) -> None:
    result = sandbox.run("{1, 2}")
    assert result.value == "{1, 2}"
    assert result.value_json is None


def test_output_of_children_and_of_c_code_is_captured_in_order(sandbox: Sandbox) -> None:
    code = (
        "import os, subprocess\nprint('1')\nsubprocess.run(['echo', '2'])\nos.write(1, b'3\\n')\nprint('4')"
    )
    assert sandbox.run(code).stdout == "1\n2\n3\n4\n"


def test_a_traceback_shows_only_the_agents_frames(sandbox: Sandbox) -> None:
    sandbox.run("def broken():\n    return 1 / 0")
    result = sandbox.run("broken()")
    assert result.outcome is Outcome.ERROR
    assert result.exit_status == 1
    assert result.exception is not None
    assert result.exception.type == "ZeroDivisionError"
    assert "return 1 / 0" in result.exception.traceback
    assert result.exception.traceback.count("File ") == 2
    assert "guest" not in result.exception.traceback


def test_a_syntax_error_points_at_the_line(sandbox: Sandbox) -> None:
    result = sandbox.run("x = (\n")
    assert result.outcome is Outcome.ERROR
    assert result.exception is not None
    assert result.exception.type == "SyntaxError"
    assert "ast.py" not in result.exception.traceback


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit", 0), ("import sys; sys.exit(3)", 3), ("exit('no')", 1)]
)
def test_leaving_by_exit_keeps_the_state(sandbox: Sandbox, code: str, status: int) -> None:
    sandbox.run("kept = 1")
    result = sandbox.run(code)
    assert result.exit_status == status
    assert result.ok is (status == 0)
    assert sandbox.run("kept").json() == 1


def test_a_dead_interpreter_is_never_replaced_in_silence(sandbox: Sandbox) -> None:
    result = sandbox.run("import os; open('kept.txt', 'w').write('x'); os._exit(5)")
    assert result.outcome is Outcome.CRASHED
    assert result.exit_status == 5
    assert not result.alive
    assert not sandbox.alive
    with pytest.raises(SessionLost, match="interpreter"):
        sandbox.run("1")
    assert sandbox.read_file("kept.txt") == b"x"


def test_a_crash_tells_its_signal(sandbox: Sandbox) -> None:
    result = sandbox.run("import ctypes; ctypes.string_at(0)")
    assert (result.outcome, result.exit_status) == (Outcome.CRASHED, -11)


def test_variables_are_the_agents_own(sandbox: Sandbox) -> None:
    sandbox.run("import json\nx = [1]\n_hidden = 2\ndef f(): ...")
    found = sandbox.variables()
    assert set(found) == {"x", "f"}
    assert (found["x"].type, found["x"].repr) == ("list", "[1]")


def test_an_exposed_function_answers_from_outside(sandbox: Sandbox) -> None:
    asked: list[object] = []

    def llm_query(prompt: str, *, temperature: float = 0.0) -> dict[str, object]:
        asked.append((prompt, temperature))
        return {"answer": prompt.upper()}

    sandbox.expose("llm_query", llm_query)
    assert sandbox.run("llm_query('hi', temperature=0.5)['answer']").json() == "HI"
    assert asked == [("hi", 0.5)]


def test_an_exposed_function_that_fails_raises_inside(sandbox: Sandbox) -> None:
    def refuse() -> None:
        raise LookupError("not today")

    sandbox.expose("refuse", refuse)
    sandbox.expose("unsayable", lambda: object())
    result = sandbox.run("try:\n    refuse()\nexcept RuntimeError as e:\n    print(e)")
    assert result.stdout == "refuse failed: LookupError: not today\n"
    assert sandbox.run("unsayable()").outcome is Outcome.ERROR
    assert sandbox.run("refuse(object())").outcome is Outcome.ERROR
    assert sandbox.run("1").json() == 1


def test_interrupt_stops_the_code_and_keeps_the_state(sandbox: Sandbox) -> None:
    started = threading.Event()
    sandbox.expose("started", started.set)

    def interrupt() -> None:
        assert started.wait(PATIENCE_S)
        sandbox.interrupt()

    other = threading.Thread(target=interrupt)
    other.start()
    result = sandbox.run("x = 1\nstarted()\nwhile True: x += 1")
    other.join()
    assert result.outcome is Outcome.INTERRUPTED
    assert sandbox.run("x > 0").json() is True


def test_modules_of_the_workspace_can_be_imported(sandbox: Sandbox) -> None:
    sandbox.write_file("mine.py", "value = 7")
    assert sandbox.run("import mine; mine.value").json() == 7


def test_preloaded_modules_are_there_already() -> None:
    with Sandbox(Policy(preload=("decimal",))) as sandbox:
        assert sandbox.run("import sys; 'decimal' in sys.modules").json() is True


def test_a_preload_that_fails_says_so() -> None:
    with pytest.raises(Exception, match="no_such_module"):
        Sandbox(Policy(preload=("no_such_module",)))


def test_readable_paths_can_be_read_and_not_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("given")
    for parent in (folder, *folder.parents[:3]):
        parent.chmod(0o755)
    (folder / "data.txt").write_text("seen")
    with Sandbox(Policy(readable=(str(folder),))) as sandbox:
        assert sandbox.run(f"open('{folder}/data.txt').read()").json() == "seen"
        assert sandbox.run(f"open('{folder}/data.txt', 'w')").outcome is Outcome.ERROR


def test_the_report_says_on_or_why_not() -> None:
    found = report()
    assert found.grade in ("host", "container")
    for state in (*found.layers.values(), *found.protections.values()):
        assert state == "on" or state.startswith("unavailable: ")
    assert found.protects("network")


def test_a_sandbox_is_an_executor(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, Executor)


def test_the_agent_is_not_root_outside(sandbox: Sandbox) -> None:
    assert sandbox.run("open('/proc/self/uid_map').read().split()[1]").json() != "0"
