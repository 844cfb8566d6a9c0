"""Programs that the compatibility tests run: servers on a socket we bound, scripts that print JSON."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support import PATIENCE_S

__all__ = ["OPENENV_BIN", "ours", "played", "served", "theirs", "tools_server"]

HERE = Path(__file__).parent
OPENENV_SIDE = HERE / "openenv_side"
OPENENV_BIN = HERE.parents[1] / ".venvs" / "openenv" / "bin"

START_S = 90.0
"""How long a server may take before it answers; OpenEnv imports for several seconds."""


@contextmanager
def served(
    python: str | Path, script: Path, *args: str, environ: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The address of a server that `script` runs until the block ends.

    The socket is bound and listening before the server starts, so there is no port to race for, and
    the first request simply waits until the server takes it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [str(python), str(script), str(listener.fileno()), *args],
            pass_fds=[listener.fileno()],
            env={**os.environ, **(environ or {})},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        httpx.get(f"{url}/health", timeout=START_S).raise_for_status()
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ours(*args: str, environ: Mapping[str, str] | None = None) -> Any:
    """Our server of the tally environment."""
    return served(sys.executable, HERE / "serve_tally.py", *args, environ=environ)


def tools_server(workers: int = 1) -> Any:
    """Our server of an environment made of tools."""
    return served(sys.executable, HERE / "serve_basket.py", str(workers))


def theirs(*args: str) -> Any:
    """OpenEnv's server of the same environment."""
    return served(OPENENV_BIN / "python", OPENENV_SIDE / "serve_tally.py", *args)


def played(*args: str) -> Any:
    """What a script in OpenEnv's environment printed, as JSON."""
    done = subprocess.run(
        [str(OPENENV_BIN / "python"), str(OPENENV_SIDE / args[0]), *args[1:]],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(args)} failed:\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
