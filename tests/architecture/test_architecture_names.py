"""Every module, class and method that ARCHITECTURE.md names exists."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import envtorch

ROOT = Path(envtorch.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "ARCHITECTURE.md"
PLACES = (ROOT, DOCUMENT.parent)

TEXT = DOCUMENT.read_text()
PATHS = sorted(set(re.findall(r"(?<![\w/.:<])[a-z_]+(?:/[a-z_0-9]+)+(?:\.py)?(?![\w(])", TEXT)))
FOLDERS = sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)*)/`", TEXT)))
MEMBERS = sorted(set(re.findall(r"\b([A-Z][a-z]\w*)\.([a-z_]\w*)\b", TEXT)) - {("ARCHITECTURE", "md")})
CLASSES = sorted(set(re.findall(r"`([A-Z][a-z]\w+)`", TEXT)))


def members() -> dict[str, set[str]]:
    """The methods and fields of every class, by the class's name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name] |= {
                    inner.name
                    for inner in node.body
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                }
                found[node.name] |= {
                    inner.target.id
                    for inner in node.body
                    if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name)
                }
    return found


KNOWN = members()


def test_names_are_found_at_all() -> None:
    assert all((PATHS, FOLDERS, MEMBERS, CLASSES))


@pytest.mark.parametrize("path", PATHS)
def test_a_module_exists(path: str) -> None:
    tails = (path, path.removesuffix(".py") + ".py")
    assert any((place / tail).exists() for place in PLACES for tail in tails)


@pytest.mark.parametrize("path", FOLDERS)
def test_a_folder_exists(path: str) -> None:
    assert any((place / path).is_dir() for place in PLACES)


@pytest.mark.parametrize(("owner", "name"), MEMBERS, ids=lambda part: str(part))
def test_a_method_exists(owner: str, name: str) -> None:
    assert name in KNOWN[owner]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_exists(name: str) -> None:
    assert name in KNOWN
