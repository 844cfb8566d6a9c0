"""`envtorch doctor`: what this machine can do."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from envtorch.cli.exits import Exit

__all__ = ["doctor"]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Say what this machine can isolate, and what is missing. Exits with 1 if no sandbox can start."""
    from envtorch.cli.examination import examine, show

    found = examine()
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"layers": dict(found.layers)}, indent=2))
    else:
        show(found, Console())
    raise typer.Exit(Exit.OK if found.healthy else Exit.FOUND_WANTING)
