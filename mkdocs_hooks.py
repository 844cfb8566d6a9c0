"""What the documentation takes from elsewhere in the tree: the decisions, the environments' READMEs."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Complete the two pages that are made of others."""
    match page.file.src_uri:
        case "design/index.md":
            return markdown + decisions()
        case "environments.md":
            return markdown + environments()
    return markdown


def decisions() -> str:
    """Every decision with its title, as links."""
    rows = []
    for path in sorted((ROOT / "docs/design").glob("[0-9]*.md")):
        number, _, title = path.read_text().splitlines()[0].lstrip("# ").partition(" ")
        rows.append(f"* [{number.rstrip(':')}]({path.name}) {title}")
    return "\n" + "\n".join(rows) + "\n"


def environments() -> str:
    """Every bundled environment's README, one heading lower, its links seen from here."""
    parts = []
    for path in sorted((ROOT / "src/envtorch/envs").glob("*/README.md")):
        text = re.sub(r"^#", "##", outside_fences(path.read_text()), flags=re.MULTILINE)
        parts.append(text.replace("\x00", "#").replace("../../../../docs/", ""))
    return "\n\n".join(parts)


def outside_fences(text: str) -> str:
    """The text with the number signs of its code blocks hidden from whoever looks for headings."""
    return re.sub(r"(`{3,}).*?\1", lambda block: block[0].replace("#", "\x00"), text, flags=re.DOTALL)
