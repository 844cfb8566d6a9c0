"""Runs OpenEnv's own tests on our alias, and compares what fails with `openenv_failures.json`.

    python tests/compat/openenv_tests.py CHECKOUTS

To be run by a Python that has EnvTorch, pytest and pytest-asyncio, and no `openenv`. CHECKOUTS holds the
repository of OpenEnv as `checkouts.py` lays it out: without its own sources. Four of the tests look for an
echo server at port 8000, and are skipped where there is none: one is served there, unless the port is taken.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
TESTS = ("tests/core", "tests/test_core")
LEAST = 711
"""How many must pass, of 728."""
ECHO_PORT = 8000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    options = parser.parse_args()
    reasons: dict[str, str] = json.loads((HERE / "openenv_failures.json").read_text())
    with tempfile.TemporaryDirectory() as directory, echo_server():
        outcomes = run(options.checkouts.resolve() / "upstream", Path(directory) / "outcomes.xml")
    passed, failed, skipped = (
        [name for name, outcome in outcomes.items() if outcome == wanted]
        for wanted in ("passed", "failed", "skipped")
    )
    print(f"{len(passed)} of {len(outcomes)} passed, {len(failed)} failed, {len(skipped)} skipped")
    for name in failed:
        print(f"  {name}: {reasons.get(name, 'not known to fail')}")
    unexpected = [name for name in failed if name not in reasons]
    mended = [name for name in reasons if name in passed]
    if mended:
        print(f"passes now, so take it from openenv_failures.json: {', '.join(mended)}")
    sys.exit(bool(unexpected or mended or len(passed) < LEAST))


def run(repository: Path, outcomes: Path) -> dict[str, str]:
    """What came of each test: `passed`, `failed` or `skipped`."""
    options = ["-p", "envtorch.compat.openenv", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", "-q", *options, "-o", "asyncio_mode=auto"]
    subprocess.run(
        [*command, f"--junitxml={outcomes}", *TESTS],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": "envs"},
    )
    return dict(told(ElementTree.parse(outcomes).iter("testcase")))


def told(cases: Iterable[ElementTree.Element]) -> Iterator[tuple[str, str]]:
    for case in cases:
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        yield f"{case.get('classname', '')}.{case.get('name', '')}", outcome


@contextmanager
def echo_server() -> Iterator[None]:
    """OpenEnv's tests look for it at this one address."""
    try:
        with socket.create_server(("127.0.0.1", ECHO_PORT)) as listener:
            command = [sys.executable, "-m", "envtorch.cli", "serve", "echo_env"]
            process = subprocess.Popen(
                [*command, "--fd", str(listener.fileno())], pass_fds=[listener.fileno()]
            )
    except OSError as taken:
        print(f"no echo server is started, so four tests may be skipped: {taken}")
        yield
        return
    try:
        wait_until_up(process)
        yield
    finally:
        process.terminate()
        process.wait()


def wait_until_up(process: "subprocess.Popen[bytes]") -> None:
    import httpx

    while process.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{ECHO_PORT}/health", timeout=60)
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the echo server ended with {process.returncode}")


if __name__ == "__main__":
    main()
