"""Writable roots other than the machine's own: unpacked directories, as root and as an ordinary user."""

from pathlib import Path

import pytest

from envtorch.sandbox import Policy, Workspace
from tests.sandbox.elsewhere import NOBODY, run_module
from tests.sandbox.roots import make_small_root, require_host_root


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
