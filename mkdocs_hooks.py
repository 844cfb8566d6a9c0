"""Parts of the documentation that come from other files: design decisions, READMEs, commands."""

import re
from pathlib import Path
from typing import Any

import typer

import envtorch.cli

ROOT = Path(__file__).parent


def on_config(config: Any) -> Any:
    """Put a page for each design decision into the navigation."""
    pages = [f"design/{path.name}" for path in sorted((ROOT / "docs/design").glob("[0-9]*.md"))]
    for section in config["nav"]:
        if "Design" in section:
            section["Design"] = ["design/index.md", *pages]
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Complete the pages that are made of other things."""
    match page.file.src_uri:
        case "design/index.md":
            return markdown + decisions()
        case "environments.md":
            return markdown + environments()
        case "reference/commands.md":
            return markdown + commands()
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


def commands() -> str:
    """Every command with its arguments and options, as the command line itself knows them."""
    group: Any = typer.main.get_command(envtorch.cli.main)
    return "\n".join(_command(name, command) for name, command in sorted(_flat(group)))


def _flat(group: Any, path: str = "envtorch") -> list[tuple[str, Any]]:
    found = []
    for name, command in group.commands.items():
        inner = f"{path} {name}"
        found += _flat(command, inner) if hasattr(command, "commands") else [(inner, command)]
    return found


def _command(name: str, command: Any) -> str:
    rows = ["| | |", "|---|---|"]
    for parameter in command.params:
        told = getattr(parameter, "help", None) or ""
        shown = ", ".join(parameter.opts) if parameter.param_type_name == "option" else parameter.name.upper()
        if parameter.name != "help":
            rows.append(f"| `{shown}` | {' '.join(told.split()).replace('|', chr(92) + '|')} |")
    table = "\n".join(rows) if len(rows) > 2 else ""
    return f"\n## {name}\n\n{command.help or ''}\n\n{table}\n"


def outside_fences(text: str) -> str:
    """The text with the number signs of its code blocks hidden from whoever looks for headings."""
    return re.sub(r"(`{3,}).*?\1", lambda block: block[0].replace("#", "\x00"), text, flags=re.DOTALL)
