"""Replay of what agents run: code in real sandboxes, and tools, on servers that are killed."""

from collections.abc import Callable

import pytest

from envtorch.client import MCPToolClient
from envtorch.envs.coding_env import CodeAction, CodingEnv
from envtorch.errors import EnvironmentFailed, SessionLost
from tests.envs.coding_env.conftest import why_no_sandbox
from tests.recovery.servers import Killable

CODING = "envtorch.envs.coding_env.app:app"
TOOLS = "tests.recovery.toolbox:app"
Start = Callable[..., Killable]

needs_sandbox = pytest.mark.skipif(
    bool(why_no_sandbox()), reason=f"no sandbox can start here: {why_no_sandbox()}"
)

SCRIPT = (
    "import random\ndraws = [random.randint(0, 9) for _ in range(5)]",
    "open('notes.txt', 'w').write('kept')",
    "def twice(x):\n    return 2 * x",
    "1 / 0",
)


@needs_sandbox
def test_the_code_of_an_episode_is_run_again_in_another_servers_sandbox(start: Start) -> None:
    first, second = start(CODING), start(CODING)
    with CodingEnv(first.url, recover="replay", elsewhere=[second.url], wait_s=60) as env:
        env.reset(seed=4)
        for code in SCRIPT:
            env.step(CodeAction(code=code))
        drawn = env.step(CodeAction(code="print(draws)")).observation.stdout
        first.kill()
        after = env.step(CodeAction(code="print(draws, open('notes.txt').read(), twice(21))"))
        assert after.observation.stdout == f"{drawn.strip()} kept 42\n"
        (copy,) = env.fork()
        with copy:
            assert copy.step(CodeAction(code="print(twice(4))")).observation.stdout == "8\n"


@needs_sandbox
@pytest.mark.parametrize(
    "wild",
    [
        "import time; print(time.time_ns())",
        "import os; print(os.urandom(8).hex())",
        "import random; print(random.SystemRandom().random())",
        "import uuid; print(uuid.uuid4())",
    ],
)
def test_code_whose_output_is_never_the_same_is_found_at_its_step(start: Start, wild: str) -> None:
    first, second = start(CODING), start(CODING)
    with CodingEnv(first.url, recover="replay", elsewhere=[second.url], wait_s=60) as env:
        env.reset(seed=4)
        env.step(CodeAction(code="x = 1"))
        env.step(CodeAction(code=wild))
        env.step(CodeAction(code="x += 1"))
        first.kill()
        with pytest.raises(SessionLost, match="step 2 was answered differently") as caught:
            env.step(CodeAction(code="print(x)"))
        assert caught.value.details == {"step": 2}
        env.reset(seed=4)
        assert env.step(CodeAction(code="print(1)")).observation.stdout == "1\n"


def test_the_tool_calls_of_an_episode_are_made_again_on_another_server(start: Start) -> None:
    first, second = start(TOOLS), start(TOOLS)
    with MCPToolClient(first.url, recover="replay", elsewhere=[second.url]) as env:
        env.reset(seed=4)
        assert env.call_tool("add", {"number": 20}) == 20
        with pytest.raises(EnvironmentFailed):
            env.call_tool("fail")
        names = [tool.name for tool in env.list_tools()]
        first.kill()
        assert env.call_tool("add", {"number": 22}) == 42
        assert [tool.name for tool in env.list_tools()] == names


def test_a_tool_that_never_answers_the_same_is_found_at_its_call(start: Start) -> None:
    first, second = start(TOOLS), start(TOOLS)
    with MCPToolClient(first.url, recover="replay", elsewhere=[second.url]) as env:
        env.reset(seed=4)
        env.call_tool("add", {"number": 20})
        env.call_tool("now")
        first.kill()
        with pytest.raises(SessionLost, match="step 2 was answered differently"):
            env.call_tool("add", {"number": 22})
