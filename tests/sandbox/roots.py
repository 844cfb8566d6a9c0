"""Root file systems to test with, and a skip where a machine can have none."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from envtorch.errors import ConfigurationError
from envtorch.sandbox import Policy, Workspace

MEGABYTE = 1024 * 1024
HOST = Policy(
    root="host",
    memory_bytes=256 * MEGABYTE,
    disk_bytes=64 * MEGABYTE,
    processes=64,
    open_files=1024,
    timeout_s=30.0,
    grace_s=0.5,
    output_bytes=65536,
)
SLEEPER = 'sleep 300 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done'
"""A background process, which has become the program that it is named after."""
OF_ENGINES = re.compile(r"/(docker|containerd|containers|netns)/")
"""In the mounts of container engines, which come and go beside a test."""
PROGRAMS = ("bash", "ls", "cat", "id", "mkdir", "touch", "rm", "sleep", "mount", "chown", "true", "find")


@functools.cache
def why_not() -> str:
    """Why there can be no writable root here; empty when there can."""
    try:
        Workspace(HOST).close()
    except ConfigurationError as error:
        return str(error)
    return ""


def require_host_root() -> None:
    if reason := why_not():
        pytest.skip(reason)


def make_small_root(folder: Path) -> Path:
    """A root of a few programs and the libraries they need, owned by whoever makes it."""
    for program in PROGRAMS:
        found = shutil.which(program, path="/usr/bin:/bin")
        assert found is not None
        told = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
        for path in [found, *re.findall(r"(/\S+) \(0x", told)]:
            place = folder / ("bin/" + program if path == found else path.lstrip("/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                shutil.copy(os.path.realpath(path), place)
    for name in ("root", "tmp", "etc", "dev", "proc", "run"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "etc/motd").write_text("a small root\n")
    return folder


def mounts_here() -> list[str]:
    """The mounts of this process's namespace, without those of container engines."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if OF_ENGINES.search(line) is None]
