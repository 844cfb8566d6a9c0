"""`envtorch push`: an environment, as a Hugging Face Space."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envtorch.errors import ConfigurationError

if TYPE_CHECKING:
    from envtorch.cli.space import SpaceFiles

__all__ = ["push"]


def push(
    environment: Annotated[str, typer.Argument(help="A directory with an environment, or a bundled name.")],
    to: Annotated[str, typer.Option(help="The Space, as owner/name.")],
    private: Annotated[bool, typer.Option("--private", help="Make the Space private, if it is new.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="With --dry-run: also write the files there.", file_okay=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Put an environment on the Hugging Face hub, as a Space that serves it from its own image.

    The token is the one of `hf auth login`, or HF_TOKEN; it is never printed.
    """
    from envtorch.cli.space import gather
    from envtorch.providers.hub import Space

    space = Space(to)
    files = gather(environment, space.repo_id)
    if into is not None and not dry_run:
        raise ConfigurationError("--into goes with --dry-run: what is sent is not written here")
    if dry_run:
        _write(files, into)
        _show(files, space.repo_id, as_json=as_json)
        return
    from envtorch.cli.uploading import upload

    address = upload(space.repo_id, files, private=private)
    typer.echo(json.dumps({"space": space.repo_id, "url": address}) if as_json else address)


def _write(files: "SpaceFiles", into: Path | None) -> None:
    for name, content in files.items() if into is not None else ():
        assert into is not None
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _show(files: "SpaceFiles", space: str, *, as_json: bool) -> None:
    sizes = {name: len(content) for name, content in sorted(files.items())}
    if as_json:
        typer.echo(json.dumps({"space": space, "files": sizes}, indent=2))
        return
    console = Console(highlight=False)
    table = Table(title=f"What would go to the Space {space}", title_justify="left")
    table.add_column("file")
    table.add_column("bytes", justify="right")
    for name, size in sizes.items():
        table.add_row(escape(name), f"{size:,}")
    console.print(table)
    console.print(f"{len(sizes)} files, {sum(sizes.values()):,} bytes. Nothing was sent.")
