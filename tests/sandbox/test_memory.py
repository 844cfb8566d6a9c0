"""How much of the zygote's memory a sandbox has copied by the time that it has run a line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.sandbox import Policy, Sandbox

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
        init = sandbox._core.handle.host_process() or 0
        (interpreter,) = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        whole = own_kilobytes(plain.pid)
        parts = own_kilobytes(init), own_kilobytes(int(interpreter))
        plain.communicate(b"\n")
    # A sandbox shares the zygote's pages until it writes to them. Both processes together must stay well
    # below one interpreter that shares nothing.
    assert sum(parts) < 0.65 * whole, (parts, whole)
