"""`envtorch sweep`: remove what dead owners left behind."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

__all__ = ["sweep"]


def sweep(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Remove containers, pods and directories whose owner is dead, wherever an engine answers."""
    from envtorch.providers.sweeper import sweep as remove

    swept = remove()
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in swept]))
        return
    for one in swept:
        typer.echo(f"removed {one.kind} {one.name}")
    typer.echo(f"{len(swept)} left behind and removed" if swept else "nothing was left behind", err=True)
