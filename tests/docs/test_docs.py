"""What the documentation says, done: every Python block, and every command that says it is run."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.run_page import Block, blocks_of
from tests.envs.coding_env.conftest import why_no_sandbox
from tests.sandbox.roots import why_not
from tests.support import PATIENCE_S, Running

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("docs", "src/envtorch/envs")
    for path in (ROOT / folder).rglob("*.md")
    if "```python" in path.read_text()
)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(page: str, echo_server: Running, tmp_path: Path) -> None:
    needs = [] if why_no_sandbox() else ["sandbox"]
    needs += [] if why_not() else ["workspace"]
    runner = ROOT / "tests/docs/run_page.py"
    command = [sys.executable, "-W", "error", str(runner), str(ROOT / page), echo_server.url, *needs]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_are_read_as_they_are_written() -> None:
    page = 'x\n<!-- needs: docker -->\n```python title="a.py"\nx = 1\n```\n\n'
    page += "<!-- run -->\n```console\n$ ls\n```\n"
    assert blocks_of(page) == [
        Block("python", "a.py", "needs: docker", "x = 1\n"),
        Block("console", None, "run", "$ ls\n"),
    ]


def test_every_environment_has_a_readme_that_plays() -> None:
    named = {Path(page).parent.name for page in PAGES if page.startswith("src")}
    environments = {path.parent.name for path in (ROOT / "src/envtorch/envs").glob("*/environment.py")}
    assert named >= environments


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page about the first environment uses curl")
def test_the_first_environment_is_served_and_played_by_its_page() -> None:
    page = (ROOT / "docs/start/first-environment.md").read_text()
    ran = [block.body for block in blocks_of(page) if block.note == "run"]
    assert [line.split()[1] for body in ran for line in body.splitlines()] == [
        "envtorch", "envtorch", "curl", "curl", "curl",
    ]  # fmt: skip
