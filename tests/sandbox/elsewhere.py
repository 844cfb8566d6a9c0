"""Running a test's own module as another user, with an interpreter which that user may read."""

import functools
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import envtorch
from tests.support import PATIENCE_S

NOBODY = 65534
ROOT = Path(__file__).parents[2]


@functools.cache
def interpreter_for(user: int) -> str:
    """An interpreter of our version that an ordinary user may run, or a skip."""
    for candidate in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}", "/usr/local/bin/python3"):
        check = [candidate, "-c", f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"]
        try:
            done = subprocess.run(check, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    pytest.skip("no Python of this version can be run by an ordinary user here")


def run_module(
    module: str,
    *arguments: str,
    user: int,
    timeout_s: float = PATIENCE_S,
    variables: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """`python -m module` as `user`, with our packages and a clean environment."""
    with start_module(module, *arguments, user=user, variables=variables) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def start_module(
    module: str, *arguments: str, user: int, variables: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """The same, without waiting for its end."""
    if os.geteuid() != 0 and user != os.geteuid():
        pytest.skip("only root can try what another user may do")
    places: Sequence[str] = [str(Path(envtorch.__path__[0]).parent), str(ROOT), sysconfig.get_path("purelib")]
    identity = {"user": user, "group": user, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [interpreter_for(user), "-B", "-m", module, *arguments],
        env={"PYTHONPATH": os.pathsep.join(places), "PATH": "/usr/bin:/bin", **(variables or {})},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **identity,
    )
