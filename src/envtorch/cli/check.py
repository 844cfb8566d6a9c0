"""`envtorch check`: whether an environment keeps its promises."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from envtorch.compat.loader import load_app
from envtorch.errors import EnvTorchError
from envtorch.server import HTTPEnvServer
from envtorch.testing import check_env

__all__ = ["check"]


def check(
    target: Annotated[
        str, typer.Argument(help="module:app, module:Environment, a directory, or a bundled name")
    ],
    actions: Annotated[
        Path | None, typer.Option(help="A JSON file with a list of actions to play; else they are made up.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the episodes.")] = 7,
) -> None:
    """Play an environment every way a trainer would, and say what is not right."""
    try:
        app = load_app(target)
    except EnvTorchError as error:
        raise typer.BadParameter(str(error), param_hint="TARGET") from error
    server: HTTPEnvServer | None = getattr(getattr(app, "state", None), "env_server", None)
    if server is None:
        raise typer.BadParameter("this application was not made by create_app", param_hint="TARGET")
    given: list[dict[str, Any]] | None = json.loads(actions.read_text()) if actions else None
    spec = server.spec
    report = check_env(server.sessions.factory.make, spec.action, spec.observation, actions=given, seed=seed)
    typer.echo(str(report))
    raise typer.Exit(0 if report.ok else 1)
