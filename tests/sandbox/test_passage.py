"""The short way of a fork: one copy of the process, made by one that shares its memory."""

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.sandbox import Sandbox
from envtorch.sandbox.guest import passage
from tests.support import PATIENCE_S

pytestmark = pytest.mark.skipif(
    platform.machine() not in passage.PROGRAMS, reason="there is no short way on this kind of machine"
)

ALONE = """
import os, signal, sys
from envtorch.sandbox.guest import passage
way = passage.prepare()
assert way is not None
"""


def alone(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter with one thread."""
    return subprocess.run(
        [sys.executable, "-c", ALONE + code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_the_program_is_what_its_listing_says(tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or not (shutil.which("as") and shutil.which("objcopy")):
        pytest.skip("the assembler of binutils is not installed")
    assert passage.__doc__ is not None
    listing = passage.__doc__[passage.__doc__.index("push") : passage.__doc__.index("For a process with one")]
    source, made, program = (tmp_path / name for name in ("pass.s", "pass.o", "pass.bin"))
    source.write_text(re.sub(r" +#.*", "", listing))
    subprocess.run(["as", source, "-o", made], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", made, program], check=True)
    assert program.read_bytes() == passage.PROGRAMS["x86_64"]


def test_the_copy_has_everything_and_goes_its_own_way() -> None:
    done = alone("""
value = [1]
reader, writer = os.pipe()
if way.fork([]) == 0:
    value.append(2)
    os.write(writer, repr((value, os.getpid())).encode())
    os._exit(0)
theirs, number = eval(os.read(reader, 100))
print(value, theirs, number != os.getpid())
""")
    assert done.stdout == "[1] [1, 2] True\n", done.stderr


def test_it_returns_at_any_depth_of_the_stack_and_again_and_again() -> None:
    done = alone("""
reader, writer = os.pipe()
def deep(levels):
    if levels:
        return sorted([levels], key=lambda _: deep(levels - 1) or 0)[0]
    if way.fork([]) == 0:
        os.write(writer, b"x")
    return 0
here = os.getpid()
for _ in range(20):
    deep(50)
    if os.getpid() != here:
        os._exit(0)
    os.read(reader, 1)
print("all came back")
""")
    assert done.stdout == "all came back\n", done.stderr


def test_libc_knows_the_thread_of_the_copy() -> None:
    """`raise` and `abort` of libc send to the thread whose number libc has noted."""
    done = alone("""
import ctypes
from envtorch.sandbox.guest import kernel
kernel.become_subreaper()
if way.fork([]) == 0:
    ctypes.CDLL(None).abort()
print(os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGABRT)
""")
    assert done.stdout == "True\n", done.stderr


def test_a_door_that_is_none_is_an_error_and_nothing_is_left() -> None:
    done = alone("""
try:
    way.fork([(999, 0x10000000)])
except OSError as error:
    print(error.strerror)
try:
    os.wait()
except ChildProcessError:
    print("no child")
""")
    assert done.stdout == "Bad file descriptor\nno child\n", done.stderr


def test_nobody_hears_of_the_process_in_between() -> None:
    done = alone("""
heard = []
signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
if way.fork([]) == 0:
    os._exit(0)
print(heard)
""")
    assert done.stdout == "[]\n", done.stderr


def test_the_agents_code_hears_nothing_of_a_fork(forkable: Sandbox) -> None:
    forkable.run("import os, signal; heard = []; signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))")
    with forkable.fork()[0] as fork:
        assert fork.run("heard").json() == []
        assert forkable.run("heard").json() == []
        assert forkable.run("os.waitpid(-1, os.WNOHANG)").exception is not None, "there is no child"


def test_a_parent_and_its_fork_can_look_at_themselves(forkable: Sandbox) -> None:
    look = "len(open('/proc/self/smaps').read()) > 0 and len(open('/proc/self/environ').read()) > 0"
    with forkable.fork()[0] as fork:
        assert forkable.run(look).json() is True
        assert fork.run(look).json() is True


THREAD = """
import threading
stop = threading.Event()
threading.Thread(target=stop.wait, daemon=True).start()
"""


def test_with_threads_a_fork_takes_the_long_way(forkable: Sandbox) -> None:
    forkable.run(THREAD + "import random; random.seed(5); data = list(range(1000))")
    forks = forkable.fork(3)
    try:
        for fork in forks:
            assert fork.run("threading.active_count(), sum(data), random.random()").ok
            assert fork.run("threading.active_count()").json() == 1, "threads do not survive a fork"
        drawn = {fork.run("random.random()").value for fork in forks}
        assert len(drawn) == 1
    finally:
        for fork in forks:
            fork.close()
    assert forkable.run("threading.active_count()").json() == 2


def test_without_a_short_way_a_fork_is_as_exact(forkable: Sandbox) -> None:
    """As it is on other kinds of machines."""
    forkable.run("import gc, random; gc.unfreeze(); random.seed(5)")
    hidden = "[i] = [o for o in gc.get_objects() if type(o).__name__ == 'Interpreter']; i._passage = None"
    assert forkable.run(hidden).ok
    with forkable.fork()[0] as fork:
        assert fork.run("i._passage is None").json() is True
        assert fork.run("random.random()").json() == forkable.run("random.random()").json()


BUSY = """
import os, threading
def scribble():
    while True:
        with open('busy.txt', 'w') as file:
            file.write('x' * 5000)
for _ in range(3):
    threading.Thread(target=scribble, daemon=True).start()
"""


def test_files_that_threads_open_and_truncate_meanwhile_do_not_stop_a_fork(forkable: Sandbox) -> None:
    forkable.run(BUSY)
    for _ in range(15):
        with forkable.fork()[0] as fork:
            assert fork.run("1 + 1").json() == 2
    assert forkable.run("2 + 2").json() == 4
