"""The tools of the coding environment: Python, commands and files, in one workspace."""

import base64
from collections.abc import Iterator

import pytest

from envtorch import create_app
from envtorch.client import MCPToolClient
from envtorch.envs.coding_env import (
    BashAction,
    CodeAction,
    CodeObservation,
    CodeToolObservation,
    CodingEnv,
    CodingToolEnv,
    EditFileAction,
    PythonAction,
    ReadFileAction,
    ViewImageAction,
    WriteFileAction,
)
from envtorch.envs.coding_env.code_tools import CODE_TOOLS
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.tools import CallToolAction, ToolErrorType
from tests.envs.coding_env.conftest import SMALL
from tests.support import Running, running

GIF = base64.b64decode("R0lGODlhAQABAAAAACw=")


@pytest.fixture
def tools(sandboxes: None) -> Iterator[CodingToolEnv]:
    with CodingToolEnv.local(lambda: CodingEnvironment(policy=SMALL)) as env:
        env.reset()
        yield env


@pytest.fixture(scope="module")
def server(sandboxes: None) -> Iterator[Running]:
    def environment() -> CodingEnvironment:
        return CodingEnvironment(policy=SMALL)

    with running(create_app(environment, CodeAction, CodeObservation, sessions=8)) as server:
        yield server


def take(env: CodingToolEnv, action: CallToolAction) -> CodeToolObservation:
    return env.step(action).observation


def test_python_and_commands_work_on_the_same_files(tools: CodingToolEnv) -> None:
    take(tools, PythonAction("x = 40; open('a.txt', 'w').write('one\\ntwo\\n')"))
    seen = take(tools, BashAction("wc -l < a.txt; mkdir d; cd d; echo late >&2; exit 3"))
    assert (seen.stdout.strip(), seen.stderr, seen.exit_code, seen.outcome) == ("2", "late\n", 3, "error")
    assert seen.result == "2\nlate\n[exit code 3]"
    assert tools.state().last_exit_code == 3
    value = take(tools, PythonAction("import os; x + 2, sorted(os.listdir())"))
    assert value.result == "(42, ['a.txt', 'd'])"
    assert take(tools, BashAction("basename $PWD")).stdout == "workspace\n", "each has a shell of its own"


def test_files_are_written_read_edited_listed_and_searched(tools: CodingToolEnv) -> None:
    take(tools, WriteFileAction("d/b.txt", "hello\nworld\n"))
    assert take(tools, ReadFileAction("d/b.txt", first_line=2)).result == "world\n"
    assert take(tools, EditFileAction("d/b.txt", "world", "moon")).result == "d/b.txt was changed at line 2."
    listed = take(tools, CallToolAction(tool_name="list_files", arguments={"depth": 2}))
    assert listed.result == "d/\nd/b.txt"
    assert take(tools, CallToolAction(tool_name="list_files")).result == "d/"
    found = take(tools, CallToolAction(tool_name="search", arguments={"pattern": "mo+n"}))
    assert str(found.result).endswith("d/b.txt:2: moon")


def test_a_list_ends_after_a_thousand_files_and_says_so(tools: CodingToolEnv) -> None:
    def listed() -> list[str]:
        return str(take(tools, CallToolAction(tool_name="list_files")).result).splitlines()

    take(tools, BashAction("mkdir d && touch d/deep {001..999}"))
    assert len(listed()) == 1000
    assert listed()[-1] == "d/"
    take(tools, BashAction("touch e"))
    assert len(listed()) == 1001
    assert listed()[-1] == "[there are more than 1000]"


def test_a_picture_is_returned_as_an_image(tools: CodingToolEnv) -> None:
    take(tools, PythonAction(f"_ = open('dot.gif', 'wb').write({GIF!r})"))
    seen = take(tools, ViewImageAction("dot.gif"))
    picture = {"type": "image", "data": base64.b64encode(GIF).decode(), "mimeType": "image/gif"}
    assert seen.result["content"][1] == picture
    assert seen.stdout == f"dot.gif: image/gif, {len(GIF)} bytes"


@pytest.mark.parametrize(
    ("action", "kind", "why"),
    [
        (ReadFileAction("none"), ToolErrorType.EXECUTION_ERROR, "No such file"),
        (ReadFileAction("x" * 70_000), ToolErrorType.EXECUTION_ERROR, "and 65536 are allowed: shorten"),
        (EditFileAction("/etc/passwd", "no such text", ""), ToolErrorType.EXECUTION_ERROR, "does not occur"),
        (ViewImageAction("/etc/passwd"), ToolErrorType.EXECUTION_ERROR, "is no PNG"),
        (CallToolAction(tool_name="bash"), ToolErrorType.INVALID_ARGS, "command: Field required"),
        (CallToolAction(tool_name="submit"), ToolErrorType.TOOL_NOT_FOUND, "there are: python, bash"),
    ],
)
def test_what_a_tool_cannot_do_is_an_observation_with_an_error(
    tools: CodingToolEnv, action: CallToolAction, kind: ToolErrorType, why: str
) -> None:
    seen = take(tools, action)
    assert seen.error is not None
    assert seen.error.error_type is kind
    assert why in seen.error.message
    assert take(tools, PythonAction("1 + 1")).result == "2", "the episode goes on"


@pytest.mark.parametrize("size", [9_000, 70_000, 300_000])
def test_a_long_command_is_run_like_a_short_one(tools: CodingToolEnv, size: int) -> None:
    command = f"cat > long.txt <<'END'\n{'x' * size}\nEND\nwc -c < long.txt\ncat\nexit 3\n"
    seen = take(tools, BashAction(command))
    assert (seen.stdout, seen.stderr, seen.exit_code) == (f"{size + 1}\n", "", 3)
    assert take(tools, BashAction("wc -c < long.txt")).stdout == f"{size + 1}\n", "the episode goes on"


def test_a_command_ends_in_time_and_leaves_the_variables(tools: CodingToolEnv) -> None:
    take(tools, PythonAction("x = 1"))
    seen = take(tools, BashAction("sleep 300", timeout_s=0.2))
    assert (seen.outcome, seen.result) == ("timed out", "[ended after 0.2 s]")
    assert take(tools, PythonAction("x")).result == "1"


def test_a_fork_has_files_and_variables(tools: CodingToolEnv) -> None:
    take(tools, PythonAction("x = 1; _ = open('f', 'w').write('base')"))
    (copy,) = tools.fork(1)
    with copy:
        take(copy, BashAction("echo more >> f"))
        assert take(copy, PythonAction("x, open('f').read()")).result == "(1, 'basemore\\n')"
    assert take(tools, ReadFileAction("f")).result == "base"


def test_a_client_of_code_and_one_of_tools_speak_to_the_same_server(server: Running) -> None:
    with CodingEnv(server.url) as code:
        code.reset()
        assert code.step(CodeAction(code="6 * 7")).observation.value == "42"
    with CodingToolEnv(server.url) as tools:
        assert tools.reset().observation.outcome == "ok"
        assert take(tools, BashAction("echo $((6 * 7))")).result == "42"
    with MCPToolClient(server.url) as agent:
        agent.reset()
        assert [tool.name for tool in agent.list_tools()] == list(CODE_TOOLS)
        assert agent.call_tool("python", {"code": "6 * 7"}) == "42"
        assert agent.step(BashAction("echo hi")).observation.result == "hi"  # type: ignore[attr-defined]


def test_the_interpreter_of_smolagents_has_python_alone() -> None:
    environment = CodingEnvironment(executor="smolagents")
    assert [tool.name for tool in environment.describe_tools()] == ["python"]
