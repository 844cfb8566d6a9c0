"""How much of the zygote's memory a sandbox has copied by the time that it has run a line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.sandbox import Policy, Sandbox
from envtorch.sandbox.guest import settling

IDLE = "x = 1; print(1, flush=True); input()"


def own_kilobytes(process: int) -> int:
    """What no other process has."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not say")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into an init")
def test_an_idle_sandbox_has_little_of_its_own(policy: Policy) -> None:
    earlier, sandbox, later = (Sandbox(policy) for _ in range(3))  # the zygote has gone on since
    with (
        earlier,
        sandbox,
        later,
        subprocess.Popen([sys.executable, "-c", IDLE], stdin=-1, stdout=-1) as plain,
    ):
        assert plain.stdout is not None
        if sandbox.report().grade != "host":
            pytest.skip("without namespaces the init builds its walls itself")
        assert sandbox.run("x = 1").ok
        plain.stdout.read(2)
        init = sandbox._core.host_process() or 0
        (interpreter,) = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        whole = own_kilobytes(plain.pid)
        parts = own_kilobytes(init), own_kilobytes(int(interpreter))
        plain.communicate(b"\n")
    # They were 0.13 and 0.35 of a plain interpreter before their memory was laid out, and 0.10 and 0.28 then.
    assert parts[0] < 0.12 * whole, parts
    assert parts[1] < 0.32 * whole, parts


def greet(name: str, *, times: int = 2) -> str:
    try:
        return " ".join([f"hello {name}"] * times)
    finally:
        del name


def test_gathered_code_does_what_it_did() -> None:
    before = greet.__code__
    settling.gather([greet, fails])  # type: ignore[list-item]
    assert greet.__code__ is not before
    assert sys.getsizeof(greet.__code__) > 512
    assert greet("you") == "hello you hello you"
    with pytest.raises(ZeroDivisionError) as caught:
        fails(0)
    assert caught.traceback[-1].lineno == fails.__code__.co_firstlineno


def fails(number: int) -> float:
    return 1 / number
