"""`envtorch wheel`: a wheel of the EnvTorch that is running, which pip can install elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from envtorch.errors import ConfigurationError

__all__ = ["wheel"]


def wheel(
    directory: Annotated[Path, typer.Argument(help="Where to put it.", file_okay=False)] = Path("."),
) -> None:
    """Write a wheel of this EnvTorch, for a machine or an image without an index; prints its path."""
    from envtorch.providers.packaging import make_wheel, wheel_name

    path = directory / wheel_name()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_wheel())
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}", next_step="name a directory that you may write to"
        ) from error
    typer.echo(str(path))
