"""A container engine of its own with a small disk, and a registry: real, and gone with their block.

Both live in a network namespace of their own, so that this machine's network, and an engine that it may
have already, notice nothing.

    python -m tests.providers.small_engine DIRECTORY    is what runs in there
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from envtorch.errors import EngineUnavailable
from envtorch.providers.engine import connect
from tests.providers.registry import registry

START_S = 60.0
IMAGE_MEGABYTES = 40


def unable() -> str | None:
    """Why no engine can be started here; None when one can."""
    if os.getuid():
        return "starting an engine needs root"
    for program in ("dockerd", "unshare", "mount", "ip"):
        if shutil.which(program) is None:
            return f"starting an engine needs {program}"
    return None


@contextmanager
def small_engine(megabytes: int) -> Iterator[tuple[str, str]]:
    """The address of an engine whose images have so much room, and an image that it can try to pull."""
    root = Path(tempfile.mkdtemp(prefix="eng-"))  # short: sockets' paths may not be long
    (root / "data").mkdir()
    inside = subprocess.Popen(
        [
            *("unshare", "--net", "--mount", "--propagation", "private", "--kill-child"),
            *(sys.executable, "-m", "tests.providers.small_engine", str(root), str(megabytes)),
        ],
        stdin=subprocess.PIPE,
    )
    address = f"unix://{root}/docker.sock"
    try:
        wait_until_up(address, inside, root / "log")
        yield address, (root / "image").read_text()
    finally:
        assert inside.stdin is not None
        inside.stdin.close()
        inside.wait()
        shutil.rmtree(root, ignore_errors=True)


def wait_until_up(address: str, inside: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            connect(address).close()
        except EngineUnavailable:
            said = log.read_text()[-2000:] if log.exists() else ""
            assert inside.poll() is None, f"the engine ended: {said}"
            assert time.monotonic() < deadline, f"the engine did not come up: {said}"
            time.sleep(0.1)
        else:
            return


def main(root: Path, megabytes: int) -> None:
    """Run the registry and the engine until standard input ends."""
    disk = root / "data"
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "engine", str(disk)], check=True)
    with registry(megabytes=IMAGE_MEGABYTES) as host, (root / "log").open("w") as log:
        (root / "image").write_text(f"{host}/one:1")
        engine = subprocess.Popen(
            [
                *("dockerd", "--host", f"unix://{root}/docker.sock", "--data-root", str(disk)),
                *("--exec-root", str(root / "exec"), "--pidfile", str(root / "pid")),
                *("--iptables=false", "--ip-forward=false", "--bridge=none"),
            ],
            stdout=log,
            stderr=log,
        )
        with suppress(KeyboardInterrupt):
            sys.stdin.read()
        engine.terminate()
        engine.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
