"""`envtorch build`: an environment's image."""

from typing import Annotated

import typer

__all__ = ["build"]


def build(
    environment: Annotated[
        str, typer.Argument(help="A bundled name like echo_env, or a directory with a Dockerfile.")
    ],
    tag: Annotated[str | None, typer.Option(help="The image's name; by default the environment's.")] = None,
    python_image: Annotated[str, typer.Option(help="What the base image starts from.")] = "python:3.11-slim",
) -> None:
    """Build the base image, where it is not in the cache, and an environment's image on it."""
    from envtorch.providers.build import build_base, build_environment, find_environment

    find_environment(environment)
    build_base(python_image=python_image, on_line=_show)
    image = build_environment(environment, tag, on_line=_show)
    typer.echo(image)


def _show(line: str) -> None:
    typer.echo(line, err=True)
