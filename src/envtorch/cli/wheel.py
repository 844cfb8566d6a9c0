"""`envtorch wheel`: the EnvTorch that is running, as something pip can install elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["wheel"]


def wheel(
    directory: Annotated[Path, typer.Argument(help="Where to put it.", file_okay=False)] = Path("."),
) -> None:
    """Write a wheel of this EnvTorch, for a machine or an image without an index; prints its path."""
    from envtorch.providers.packaging import make_wheel, wheel_name

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / wheel_name()
    path.write_bytes(make_wheel())
    typer.echo(str(path))
