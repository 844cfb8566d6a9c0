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
}

SHARED_CLASSES = {
    # Public names of two packages: these stay.
    "Report": "a sandbox's layers, check_env's findings",
    "Rubric": "a protocol that environments need, the base class",
    "ToolCall": "a language model's, a recorded one",
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
