"""What a reader finds: the first screen of the README, and every page of the documentation once."""

import re
from pathlib import Path
from typing import Any

import mkdocs_hooks
import yaml

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def pages_of(nav: Any) -> list[str]:
    """The pages in a part of the navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_of(part)]


def navigation() -> list[str]:
    written = (ROOT / "mkdocs.yml").read_text()
    config = mkdocs_hooks.on_config({"nav": yaml.safe_load(written)["nav"]})
    return pages_of(config["nav"])


def test_every_page_is_in_the_sidebar_once_and_design_pages_too() -> None:
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(navigation()) == sorted(there)
    assert {"glossary.md", "guides/rubrics.md", "errors.md", "recording.md"} <= there


def test_recordings_and_errors_have_one_page_each() -> None:
    titles = [re.search(r"^# (.+)", (ROOT / "docs" / page).read_text(), re.M) for page in navigation()]
    named = [title[1] for title in titles if title]
    assert (named.count("Recordings"), named.count("Errors")) == (1, 1)


def test_the_readme_begins_with_what_it_is_for_whom_and_why_not_the_others() -> None:
    first, _, rest = README.partition("\n## Install\n")
    assert "Environments for agentic reinforcement learning" in first.split("\n\n")[1]
    assert "is for people who train or evaluate agents" in first
    assert "| | EnvTorch | OpenEnv 0.10 | Gymnasium |" in first
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", first)
    assert pictures
    assert all((ROOT / picture).exists() for picture in pictures)
    assert "$ pip install . " in rest.partition("\n## ")[0], "there is no release: from a checkout"


def test_the_readme_says_in_three_lines_how_fast_it_is() -> None:
    told = README.partition("## How fast is it?\n")[2].partition("\n## ")[0].strip()
    assert "bench/results.md" in told
    assert len(told.splitlines()) == 3
