"""Runs `envtorch` command lines in forks of one process, which has loaded everything.

Most of the time that a short command takes is that of its imports. What it says and how it ends is the same.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from tests.support import PATIENCE_S

ROOT = Path(__file__).parents[2]


class WarmCommands:
    """The process, and the way to it."""

    def __init__(self, outputs: Path) -> None:
        self._outputs = outputs
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, line: str, directory: Path) -> "subprocess.CompletedProcess[str]":
        """What `envtorch LINE` does in that directory."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = self._outputs / "stdout", self._outputs / "stderr"
        order = [shlex.split(line), str(directory), str(out), str(err)]
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(order[0], code, out.read_text(), err.read_text())

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@contextmanager
def warm_commands() -> Iterator[WarmCommands]:
    with TemporaryDirectory() as outputs:
        commands = WarmCommands(Path(outputs))
        try:
            yield commands
        finally:
            commands.close()


def serve_orders() -> None:
    """In the process: a fork for each order on stdin, and its exit code on stdout."""
    for order in sys.stdin:
        child = os.fork()
        if child == 0:
            carry_out(*json.loads(order))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def carry_out(arguments: list[str], directory: str, out: str, err: str) -> NoReturn:
    """In the fork: be `python -m envtorch.cli`, in that directory."""
    from envtorch.cli import main

    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(directory)
    os.environ.update(COLUMNS="200", TERM="dumb")
    sys.path[0], sys.argv = directory, ["envtorch", *arguments]
    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    sys.exit(0)


MODULES = (
    "envtorch.cli",
    "envtorch.server.app",
    "envtorch.server.serve",
    "envtorch.targets",
    "envtorch.testing",
    "httpx",
    "rich.markdown",
    "typer.rich_utils",
)
"""What commands import when they need it."""

if __name__ == "__main__":
    for module in MODULES:
        import_module(module)
    serve_orders()
