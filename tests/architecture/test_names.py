"""One name, one meaning: module stems and public class names occur once in the tree.

Outside the count are the environments in `envs`, whose files are all laid out alike, `compat`, whose names
are OpenEnv's, and the asynchronous twin of a blocking class or module in the client (`client/blocking`,
`client/aio`). What else is shared is listed below with what it stands for. A list may only become shorter:
a name that has become unique must be taken off it.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import envtorch

ROOT = Path(envtorch.__file__).parent
NOT_COUNTED = ("envs", "compat", "cli/template")
TWINS = ("client/blocking", "client/aio")

SHARED_STEMS = {
    # A command line's module is named after its command: these stay.
    "build": "the command, and how a provider builds an image",
    "play": "the command, and the page's tab",
    "replay": "the command, and how a recording is replayed",
    "serve": "the command, and how an application is served",
    # These are to be renamed.
    "aio": "asynchronous pool, client and sandbox",
    "app": "server's application, terminal application",
    "base": "abstract provider, language model, rubric and pool",
    "compare": "page's comparison, recording's comparison",
    "environment": "testing's and mcp's environments",
    "forking": "sandbox's owner, its guest, and the protocol",
    "keeper": "sandbox's init process, pool's maintenance",
    "operations": "sandbox's calls, page's calls",
    "options": "provider's, client's",
    "registry": "server's sessions, mcp's tools",
    "report": "sandbox's layers, check_env's findings",
    "sharing": "sandbox's owner and its guest",
    "subject": "page's environment, checked environment",
    "tools": "declared tools, their protocol, their client",
    "widgets": "page's, terminal's",
    "wire": "sandbox's frames, protocol's formats",
}

SHARED_CLASSES = {
    "Ask": "sandbox's driver, protocol's wire",
    "Branch": "page's, terminal's",
    "Call": "sandbox's, isolated process's, recording's",
    "Child": "isolated process, worker",
    "Entry": "worker's register, page's list of episodes",
    "Failed": "isolated process's message, pool's outcome",
    "Field": "page's form, terminal's form",
    "Finding": "doctor's, check_env's",
    "Fork": "a message, a recorded event",
    "Gate": "token check, rubric",
    "Hello": "sandbox's first message, isolated process's",
    "Kind": "page's form, terminal's form",
    "Line": "server's transport, worker's message, demo's output",
    "Link": "between workers, between client and server",
    "Names": "slots, a new project",
    "Outcome": "sandbox's run, server's request",
    "Phase": "provider's, session's",
    "Plan": "sandbox's, isolated process's, worker's",
    "Player": "recording's, check_env's",
    "Pool": "sandboxes, servers",
    "Ready": "isolated process's, worker's",
    "Report": "sandbox's layers, check_env's findings",
    "Reset": "a message, a recorded event",
    "Rubric": "a protocol, the base class",
    "Skipped": "a recorded step, a provider check",
    "State": "an environment's state, the message that asks for it",
    "Step": "a message, a recorded event",
    "Subject": "page's environment, checked environment",
    "ToolCall": "language model's, recorded",
    "Tunnel": "between workers, to a container",
    "Unfit": "isolated process's message, worker's",
}


def counted() -> Iterator[Path]:
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(NOT_COUNTED) and not path.stem.startswith("__"):
            yield path


def place(path: Path) -> str:
    """Where it stands; twins stand in one place."""
    found = path.relative_to(ROOT).with_suffix("").as_posix()
    for twin in TWINS:
        found = found.replace(twin + "/", "client/twins/")
    return found


def stems() -> dict[str, set[str]]:
    found = defaultdict(set)
    for path in counted():
        found[path.stem].add(place(path))
    return found


def public_classes() -> dict[str, set[str]]:
    found = defaultdict(set)
    for path in counted():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(place(path))
    return found


@pytest.mark.parametrize(
    ("found", "listed"),
    [(stems(), SHARED_STEMS), (public_classes(), SHARED_CLASSES)],
    ids=["module stems", "public classes"],
)
def test_a_name_has_one_meaning(found: dict[str, set[str]], listed: dict[str, str]) -> None:
    shared = {name: sorted(places) for name, places in found.items() if len(places) > 1}
    new = {name: places for name, places in shared.items() if name not in listed}
    assert not new, f"each of these is the name of several things; rename all but one: {new}"
    unique = sorted(listed.keys() - shared.keys())
    assert not unique, f"unique by now; take these off the list above: {unique}"
