"""Run the tests of server, client, tools and protocol with the dependencies of this virtual environment.

    PLACE/bin/python -m tests.versions     # for each environment of `make test-versions`

The versions that were tested are printed first.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

REACHED_INTO = [
    "pydantic",
    "msgspec",
    "websockets",
    "picows",
    "uvloop",
    "httptools",
    "httpx",
    "httpcore",
    "fastapi",
    "starlette",
    "uvicorn",
    "fastmcp",
    "mcp",
    "gradio",
]
"""The packages of which we use more than what their documentation promises for good."""

BASE = [
    "tests/protocol",
    "tests/client",
    "tests/server/test_websocket.py",
    "tests/server/test_extended.py",
    "tests/server/test_http.py",
    "tests/server/test_transcripts.py",
    "tests/server/test_liveness.py",
    "tests/server/test_gate.py",
    "tests/server/workers/test_sockets.py",
]
OTHERS_WARNINGS = [
    "ignore:'click.utils.get_:DeprecationWarning",
    "ignore:The anyio.abc.BlockingPortal alias:DeprecationWarning",
]
"""Of an older typer about a newer click, and of an older starlette about a newer anyio."""
EXTRAS = ["tests/tools", "tests/server/test_mcp_and_tasks.py", "tests/web/test_page.py"]


def installed() -> dict[str, str]:
    found = {}
    for name in REACHED_INTO:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "-"
    return found


def main() -> int:
    versions = installed()
    print(Path(sys.prefix).name)
    print("  ".join(f"{name} {number}" for name, number in versions.items()), flush=True)
    has_extras = "-" not in (versions["fastmcp"], versions["gradio"])
    options = ["-q", "-n", "auto", "-m", "not slow", *(f"-W{warning}" for warning in OTHERS_WARNINGS)]
    return int(pytest.main([*options, *BASE, *(EXTRAS if has_extras else [])]))


if __name__ == "__main__":
    sys.exit(main())
