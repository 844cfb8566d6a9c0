"""From an empty directory to an environment in a container: the lines of the page, run as they stand."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.providers.conftest import no_engine
from tests.support import PATIENCE_S

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text()
SECTION = PAGE.split("## From an empty directory to a container")[1].split("\n## ")[0]
WRITTEN, CONTAINED = re.findall(r"```console\n(.*?)```", SECTION, flags=re.DOTALL)

WAIT = """
until python3 -c "from urllib.request import *; urlopen('http://127.0.0.1:PORT/health')" 2>/dev/null
do sleep 0.1; done
"""
"""What a person does between two lines: waits until the server is there."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def script_of(block: str, port: int) -> str:
    """The lines of a block as a script that stops at the first failure; a port of its own, and patience."""
    lines = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    parts = ["set -euxo pipefail", "set -m"]
    for line in lines:
        line = line.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{port}")
        if line.startswith("envtorch serve"):
            line = line.replace(" &", f" --port {port} &")
        parts.append(line.replace("127.0.0.1:8000:8000", f"127.0.0.1:{port}:8000"))
        if line.endswith("&") or "--detach" in line:
            parts.append(WAIT.replace("PORT", str(port)))
        if line.startswith("kill"):
            parts.append("wait || true")
    return "\n".join(parts)


def run(script: str, cwd: Path, timeout: float) -> str:
    dropped = ("VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTEST_ADDOPTS")
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=cwd, env=environ, timeout=timeout
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_an_empty_directory(tmp_path: Path) -> None:
    said = run(script_of(WRITTEN, free_port()), tmp_path, timeout=800)
    assert "6 passed" in said
    assert said.count("0 errors, 0 warnings") == 2, "checked here, and on the server"
    assert "steps/s" in said
    assert "no divergence" in said


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(900)
def test_to_a_container(tmp_path: Path) -> None:
    reason = no_engine()
    if reason is not None:
        pytest.skip(f"container tests need an engine: {reason}")
    if shutil.which("docker") is None:
        pytest.skip("the docker command is not installed")
    name = f"wordle{os.getpid()}"
    run(f"envtorch new {name}", tmp_path, timeout=PATIENCE_S)
    block = CONTAINED.replace("wordle", name)  # several runs may share one engine
    said = run(script_of(block, free_port()), tmp_path / name, timeout=800)
    assert said.count("0 errors") == 1
