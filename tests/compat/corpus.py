"""Serves environments written for OpenEnv, unmodified, and plays each: reset, three steps, state.

    python tests/compat/corpus.py corpus.json CHECKOUTS [--python PYTHON] [--only TEXT] [--table]

`corpus.json` lists the environments: id, dir, app, pythonpath, env_vars, reset, actions. CHECKOUTS holds
their repositories. PYTHON has EnvTorch and the environments' own packages, and no `openenv`.
"""

import argparse
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from envtorch.client import GenericEnvClient
from envtorch.errors import EnvTorchError, InvalidAction

START_S = 300.0
STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="")
    parser.add_argument("--table", action="store_true", help="print a Markdown table at the end")
    options = parser.parse_args()
    entries = [e for e in json.loads(options.corpus.read_text()) if options.only in e["id"]]
    rows = []
    for entry in entries:
        began = time.monotonic()
        outcome = play(entry, options.checkouts.resolve(), options.python)
        print(f"{time.monotonic() - began:5.1f} s  {entry['id']}: {outcome}", flush=True)
        rows.append((entry, outcome))
    if options.table:
        for entry, outcome in rows:
            print(f"| {entry['id']} | `{entry['commit'][:8]}` | {outcome} |")
    passed = sum(outcome.startswith("ok") for _, outcome in rows)
    print(f"{passed} of {len(rows)} played")
    sys.exit(passed != len(rows))


def play(entry: dict[str, Any], checkouts: Path, python: str) -> str:
    """How one environment fared: "ok", or what went wrong."""
    with tempfile.TemporaryFile("w+") as log:
        try:
            with served(entry, checkouts, python, log) as url:
                return episode(url, entry)
        except (EnvTorchError, httpx.HTTPError, TimeoutError, RuntimeError) as error:
            log.seek(0)
            last = [line for line in log.read().splitlines() if line.strip()][-1:]
            return f"{type(error).__name__}: {error} {' '.join(last)}".strip().replace("\n", " ")[:300]


def episode(url: str, entry: dict[str, Any]) -> str:
    """Reset, three steps, state: over the base wire, with an action's own refusal as an answer."""
    with GenericEnvClient(url, message_timeout_s=300, wire="openenv") as env:
        env.reset(**entry.get("reset", {}))
        refused = 0
        for action in itertools.islice(itertools.cycle(entry["actions"]), STEPS):
            try:
                env.step(action)
            except InvalidAction as error:
                refused += 1
                if refused == STEPS:
                    return f"every action was refused: {error}"
        env.state()
    return f"ok, {refused} of {STEPS} actions refused" if refused else "ok"


@contextmanager
def served(entry: dict[str, Any], checkouts: Path, python: str, log: Any) -> Iterator[str]:
    """The address of the environment's server, for the length of the block."""
    filled = {name: value.format(here=checkouts) for name, value in entry.get("env_vars", {}).items()}
    paths = os.pathsep.join(str(checkouts / path) for path in entry["pythonpath"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [python, "-m", "envtorch.cli", "serve", entry["app"], "--fd", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            cwd=checkouts / entry["dir"],
            env={**os.environ, "PYTHONPATH": paths, **filled},
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(url, process)
        mounted = re.search(r"mounted at (/\w+)", entry.get("notes", ""))
        yield url + (mounted[1] if mounted else "")
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_up(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Until the server answers anything at all, or has died. Its socket is open from the start."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:")
        try:
            httpx.get(f"{url}/openapi.json", timeout=2)
        except httpx.TimeoutException:
            continue
        except httpx.HTTPError:
            continue
        return
    raise TimeoutError(f"no answer within {START_S:g} s")


if __name__ == "__main__":
    main()
