"""Writable roots other than the machine's own: unpacked directories, as root and as an ordinary user."""

import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.sandbox import Policy, Workspace
from envtorch.sandbox.guest.processes import status
from tests.sandbox.elsewhere import NOBODY, ROOT, run_module
from tests.sandbox.roots import make_small_root, mounts_here, require_host_root
from tests.support import eventually


def test_a_directory_is_a_root(tmp_path: Path) -> None:
    require_host_root()
    root = make_small_root(tmp_path)
    with Workspace(Policy(root=str(root), disk_bytes=16 << 20, open_files=256)) as workspace:
        answer = workspace.run(
            "cat /etc/motd; echo new > /etc/motd; ls /; chown 1000:1000 /etc/motd && echo owned"
        )
        assert answer.output.split() == [
            *[
                "a",
                "small",
                "root",
                "bin",
                "dev",
                "etc",
                "lib",
                "lib64",
                "proc",
                "root",
                "run",
                "tmp",
                "owned",
            ]
        ]
    assert (root / "etc/motd").read_text() == "a small root\n"


def test_an_ordinary_user_has_a_directory_of_its_own_as_root() -> None:
    done = run_module("tests.sandbox.workspace_checks", user=NOBODY)
    if done.returncode == 3:
        pytest.skip(f"an ordinary user can have no writable root here: {done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr


OWNER = """
import sys, time
from envtorch.sandbox import Workspace
from tests.sandbox.roots import HOST
workspace = Workspace(HOST)
workspace.run("setsid sleep 600 & sleep 600 &")
print(workspace._channel.process(), workspace.store.process.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_owner_leaves_no_process_and_no_mount() -> None:
    require_host_root()
    mounts = mounts_here()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as owner:
        assert owner.stdout is not None
        processes = [int(word) for word in owner.stdout.readline().split()]
        assert len(processes) == 2
        owner.kill()
    eventually(lambda: not any(map(is_alive, processes)), "the end of the session's init and of its store")
    assert mounts_here() == mounts


def is_alive(process: int) -> bool:
    found = status(process)
    return found is not None and found.lives
