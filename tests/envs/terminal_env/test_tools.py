"""Each tool of the terminal environment, called as a step."""

from typing import Any

import pytest

from envtorch.envs.terminal_env import (
    BashAction,
    EditFileAction,
    ReadFileAction,
    SendKeysAction,
    SubmitAction,
    TerminalObservation,
    ViewImageAction,
    WriteFileAction,
)
from envtorch.envs.terminal_env.environment import TerminalEnvironment
from envtorch.envs.terminal_env.models import CommandEnding
from envtorch.envs.tool_arguments import TERMINAL_TOOLS, describe_tools
from envtorch.errors import ConfigurationError, EnvironmentFailed, Unsupported
from envtorch.protocol.observation_text import observation_text
from envtorch.sandbox import CommandOutcome, Policy
from envtorch.tools import CallToolAction, ListToolsAction, ToolErrorType
from envtorch.types import Action
from tests.sandbox.roots import SLEEPER


def take(
    environment: TerminalEnvironment, action: Action, timeout_s: float | None = None
) -> TerminalObservation:
    observation = environment.step(action, timeout_s)
    assert isinstance(observation, TerminalObservation)
    return observation


def call(environment: TerminalEnvironment, tool: str, **arguments: Any) -> TerminalObservation:
    return take(environment, CallToolAction(tool_name=tool, arguments=arguments))


def test_the_endings_are_those_of_the_sandbox() -> None:
    assert set(CommandEnding.__args__) == {outcome.value for outcome in CommandOutcome}  # type: ignore[attr-defined]


def test_every_tool_is_described_with_its_arguments() -> None:
    described = {tool.name: tool for tool in describe_tools(TERMINAL_TOOLS)}
    assert list(described) == list(TERMINAL_TOOLS)
    assert all(tool.description for tool in described.values())
    assert described["bash"].input_schema["required"] == ["command"]
    assert described["bash"].input_schema["additionalProperties"] is False


def test_a_policy_without_a_root_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="with a root"):
        TerminalEnvironment(policy=Policy())


def test_bash_keeps_its_state_and_tells_the_status(terminal: TerminalEnvironment) -> None:
    take(terminal, BashAction("cd /usr; x=1"))
    seen = take(terminal, BashAction("echo $x; pwd; (exit 4)"))
    assert (seen.output, seen.exit_code, seen.outcome) == ("1\n/usr\n", 4, "error")
    assert seen.result == "1\n/usr\n[exit code 4]"
    assert (terminal.state.directory, terminal.state.last_exit_code, terminal.state.step_count) == (
        "/usr",
        4,
        2,
    )


def test_a_command_ends_before_the_deadline_of_the_call(terminal: TerminalEnvironment) -> None:
    take(terminal, BashAction("true"))  # the shell has started before the time runs
    seen = take(terminal, BashAction("echo begun; sleep 100"), timeout_s=1.0)
    assert (seen.outcome, seen.output) == ("timed out", "begun\n")
    assert seen.result == "begun\n[interrupted after 0.5 s]"


def test_an_ended_shell_is_told_and_there_is_a_new_one(terminal: TerminalEnvironment) -> None:
    seen = take(terminal, BashAction("cd /usr; exit 2"))
    assert (seen.outcome, seen.exit_code, seen.shell_ended) == ("shell ended", 2, True)
    assert "a new shell was started in /root" in str(seen.result)
    assert take(terminal, BashAction("pwd")).output == "/root\n"


def test_files_are_written_read_edited_listed_and_searched(terminal: TerminalEnvironment) -> None:
    take(terminal, BashAction("mkdir /job; cd /job"))
    take(terminal, WriteFileAction("a/b.py", "one = 1\ntwo = 1\nthree = 3\n"))
    assert take(terminal, ReadFileAction("a/b.py", first_line=2, last_line=2)).result == "two = 1\n"
    assert (
        take(terminal, EditFileAction("a/b.py", "two = 1", "two = 2")).result
        == "a/b.py was changed at line 2."
    )
    assert call(terminal, "list_files", depth=2).result == "a/\na/b.py"
    assert (
        call(terminal, "search", pattern="= [23]", glob="*.py").result
        == "./a/b.py:2: two = 2\n./a/b.py:3: three = 3"
    )
    assert call(terminal, "search", pattern="nowhere").result == "Nothing was found."


@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "message"),
    [
        (
            "edit_file",
            {"path": "/etc/hosts", "old": "nothing like it", "new": ""},
            "EXECUTION_ERROR",
            "does not occur",
        ),
        (
            "edit_file",
            {"path": "/etc/hosts", "old": "localhost", "new": ""},
            "EXECUTION_ERROR",
            "occurs 2 times",
        ),
        ("read_file", {"path": "/missing"}, "EXECUTION_ERROR", "/missing: No such file or directory"),
        ("read_file", {"path": "/etc"}, "EXECUTION_ERROR", "not a regular file"),
        ("read_file", {"path": "/etc/hosts", "first_line": 99}, "EXECUTION_ERROR", "none with the number 99"),
        ("search", {"pattern": "("}, "EXECUTION_ERROR", "no regular expression"),
        ("bash", {}, "INVALID_ARGS", "command: Field required"),
        ("bash", {"command": "true", "timeout": 3}, "INVALID_ARGS", "timeout: Extra inputs"),
        ("bash", {"command": "a\0b"}, "EXECUTION_ERROR", "NUL"),
        ("read_file", {"path": "a\0b"}, "INVALID_ARGS", "path: Value error, a path cannot hold a NUL"),
        ("write_file", {"path": "a\0b", "text": ""}, "INVALID_ARGS", "cannot hold a NUL"),
        ("edit_file", {"path": "a\0b", "old": "a", "new": "b"}, "INVALID_ARGS", "cannot hold a NUL"),
        ("list_files", {"path": "a\0b"}, "INVALID_ARGS", "cannot hold a NUL"),
        ("search", {"pattern": "a", "path": "a\0b"}, "INVALID_ARGS", "cannot hold a NUL"),
        ("view_image", {"path": "a\0b"}, "INVALID_ARGS", "cannot hold a NUL"),
        (
            "send_keys",
            {"keys": 4097 * "x"},
            "INVALID_ARGS",
            "keys: String should have at most 4096 characters",
        ),
        ("zsh", {}, "TOOL_NOT_FOUND", "there are: bash"),
    ],
)
def test_what_a_tool_cannot_do_is_an_observation_with_an_error(
    terminal: TerminalEnvironment, tool: str, arguments: dict[str, Any], kind: str, message: str
) -> None:
    seen = call(terminal, tool, **arguments)
    assert seen.error is not None
    assert seen.error.error_type is ToolErrorType[kind]
    assert message in seen.error.message
    assert not seen.done
    assert take(terminal, BashAction("echo on")).output == "on\n"


def test_a_search_leaves_out_files_that_cannot_be_read(terminal: TerminalEnvironment) -> None:
    """A process cannot read its own memory as a file, although that is a regular one."""
    take(terminal, BashAction("mkdir /tmp/s; cd /tmp/s; mkfifo pipe; echo needle > text"))
    assert call(terminal, "search", pattern="needle", path="/tmp/s").result == "/tmp/s/text:1: needle"
    for path in ("/proc/self/mem", "/proc/self/task"):
        seen = call(terminal, "search", pattern="needle", path=path)
        assert seen.error is None, seen.error
        assert "needle" not in str(seen.result)


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
"""A PNG of one pixel."""


def test_a_picture_is_returned_as_an_image(terminal: TerminalEnvironment) -> None:
    take(terminal, BashAction(f"echo {PIXEL} | base64 -d > /tmp/plot.png; cp /etc/passwd /tmp/false.png"))
    seen = take(terminal, ViewImageAction("/tmp/plot.png"))
    assert seen.result.content[1] == {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    assert "plot.png: image/png" in observation_text(seen)
    refused = take(terminal, ViewImageAction("/tmp/false.png"))
    assert refused.error is not None
    assert "is no PNG, JPEG, GIF or WebP" in refused.error.message
    take(terminal, BashAction(f"(echo {PIXEL} | base64 -d; head -c 5M /dev/zero) > /tmp/large.png"))
    refused = take(terminal, ViewImageAction("/tmp/large.png"))
    assert refused.error is not None
    assert "can be read" in refused.error.message


def test_submit_ends_the_episode(terminal: TerminalEnvironment) -> None:
    seen = take(terminal, SubmitAction())
    assert seen.done
    assert terminal.state.submitted
    with pytest.raises(EnvironmentFailed, match="call reset"):
        take(terminal, BashAction("true"))
    terminal.reset()
    assert take(terminal, BashAction("echo again")).output == "again\n"


def test_a_rubric_sees_every_step() -> None:
    from tests.sandbox.roots import HOST, require_host_root

    require_host_root()
    environment = TerminalEnvironment(policy=HOST, rubric=lambda action, seen: float(seen.output == "42\n"))
    environment.reset()
    assert take(environment, BashAction("echo 41")).reward == 0.0
    assert take(environment, BashAction("echo 42")).reward == 1.0
    environment.close()


def test_tools_are_listed_by_a_step(terminal: TerminalEnvironment) -> None:
    assert [tool.name for tool in terminal.step(ListToolsAction()).tools] == list(TERMINAL_TOOLS)


def test_a_copy_goes_its_own_way(terminal: TerminalEnvironment) -> None:
    take(terminal, BashAction("cd /tmp; echo 1 > n; v=here"))
    twin = terminal.fork()
    try:
        assert take(twin, BashAction("cat n; echo $v; echo 2 > n")).output == "1\nhere\n"
        assert take(terminal, BashAction("cat n")).output == "1\n"
        assert (twin.state.step_count, terminal.state.step_count) == (2, 2)
    finally:
        twin.close()
    take(terminal, BashAction(SLEEPER))
    with pytest.raises(Unsupported, match="sleep"):
        terminal.fork()


def test_keys_and_the_screen_drive_programs_that_want_a_terminal(terminal: TerminalEnvironment) -> None:
    pytest.importorskip("pyte", reason="the screen needs pyte: pip install 'envtorch[terminal]'")
    seen = take(terminal, BashAction("read -p 'name? ' name; echo hello $name", terminal=True))
    assert seen.outcome == "running"
    assert "name?" in str(seen.result)
    refused = take(terminal, BashAction("true"))
    assert refused.error is not None
    assert "has the terminal" in refused.error.message
    seen = take(terminal, SendKeysAction("Ada<enter>"))
    assert (seen.outcome, seen.exit_code) == ("ok", 0)
    assert "hello Ada" in str(seen.result)
    assert take(terminal, BashAction("echo $name")).output == "Ada\n"
    seen = take(terminal, SendKeysAction("echo $((6*7))<enter>"))
    assert "42" in str(call(terminal, "screen").result)
    assert take(terminal, SendKeysAction("exit<enter>")).outcome == "ok"
    assert take(terminal, BashAction("echo back")).output == "back\n"


def test_keys_are_typed_within_the_deadline_of_the_call(terminal: TerminalEnvironment) -> None:
    pytest.importorskip("pyte", reason="the screen needs pyte: pip install 'envtorch[terminal]'")
    take(terminal, BashAction("read -p 'name? ' name; echo hello $name", terminal=True))
    seen = take(terminal, SendKeysAction("<esc>" * 800 + "Ada<enter>"), timeout_s=2.0)
    assert "[the time was over: send the keys behind <esc> number " in str(seen.result)
    assert "name?" in str(seen.result)
    assert seen.outcome == "running"
    assert take(terminal, SendKeysAction("<enter>")).outcome == "ok"
