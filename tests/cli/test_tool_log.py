"""What the log of a server says about tools: plain lines, with the author's frames only."""

import subprocess
import sys
from pathlib import Path

import envtorch
from tests import patient
from tests.support import PATIENCE_S

TOOLS = """
from fastmcp import FastMCP

from envtorch import Observation, State
from envtorch.mcp import MCPEnvironment


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("tools")

        @tools.tool
        def drop(thing: str) -> str:
            raise ValueError("it is glued on")

        super().__init__(tools)

    def reset(self) -> Observation:
        return Observation()

    def _step_impl(self, action, timeout_s=None, **options):
        return Observation()

    @property
    def state(self) -> State:
        return State()
"""


def test_a_tool_that_fails_is_logged_in_plain_lines(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    command = [sys.executable, "-m", "envtorch.cli", "serve", "tools.py", "--port", "0"]
    server = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        url = server.stderr.readline().split(" on ")[1].split()[0]
        for arguments in ({"thing": "cup"}, {"thing": ["cup"]}):
            params = {"name": "drop", "arguments": arguments}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            assert "error" in patient.post(f"{url}/mcp", json=body).json()
    finally:
        server.terminate()
        _, log = server.communicate(timeout=PATIENCE_S)
    assert "glued on" in log
    assert "Invalid arguments for tool 'drop'" in log
    assert not set("╭│╰─").intersection(log), log
    assert "server.py" not in log
    frames = [line.split('"')[1] for line in log.splitlines() if line.lstrip().startswith("File ")]
    assert {Path(frame).name for frame in frames} <= {"tools.py"}, log
    assert str(Path(envtorch.__file__).parent) not in log
