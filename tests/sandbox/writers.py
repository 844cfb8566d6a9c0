"""Code that renames and replaces files all the time, so that as many exist at every moment."""

import time

from envtorch.sandbox import Sandbox
from tests.support import PATIENCE_S

FILES = 200
_RENAME = f"""
import os
number = 0
while True:
    number += 1
    with open("next", "w") as file: file.write(str(number))
    os.rename("next", "number")
    name = f"{{number % {FILES}:03}}"
    os.rename(f"file{{name}}", f"moved{{name}}")
    os.rename(f"moved{{name}}", f"file{{name}}")
"""
_RENAME_IN_SHELL = """
while true; do for f in file*; do mv $f moved$f; mv moved$f $f; echo $f > next; mv next number; done; done
"""
_PREPARE = f"""
import subprocess, sys, threading
for number in range({FILES}):
    with open(f"file{{number:03}}", "w") as file: file.write("content" * 300)
"""
PROCESS = f"{_PREPARE}writer = subprocess.Popen([sys.executable, '-c', {_RENAME!r}])"
SHELL = f"{_PREPARE}writer = subprocess.Popen(['sh', '-c', {_RENAME_IN_SHELL!r}])"
THREAD = f"{_PREPARE}threading.Thread(target=exec, args=({_RENAME!r}, {{}}), daemon=True).start()"


def begin(sandbox: Sandbox, writer: str) -> None:
    """Start a writer, and wait until it writes."""
    assert sandbox.run(writer).ok
    await_change(sandbox)


def await_change(sandbox: Sandbox) -> None:
    """Wait until the writer has written."""
    end = time.monotonic() + PATIENCE_S
    before = _number(sandbox)
    while _number(sandbox) == before:
        assert time.monotonic() < end, "nothing is written any more"
        time.sleep(0.01)


def files_in(copy: Sandbox) -> tuple[int, list[tuple[str, int]], bytes]:
    """How many of the files are there, the names and sizes of all, and what was written last."""
    files = [(file.path, file.size) for file in copy.list_files()]
    return sum(path.startswith(("file", "moved")) for path, _ in files), files, _number(copy)


def _number(sandbox: Sandbox) -> bytes:
    try:
        return sandbox.read_file("number")
    except FileNotFoundError:
        return b""
