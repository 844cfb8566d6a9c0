"""`envtorch mcp`: an environment as tools, for an agent that starts its tools as programs."""

from typing import Annotated

import typer

from envtorch.cli.serving import TARGET_HELP
from envtorch.errors import EnvTorchError

__all__ = ["mcp"]


def mcp(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP)],
) -> None:
    """Serve an environment's tools over standard input and output, as MCP."""
    from envtorch.compat.loader import load_app
    from envtorch.server.doors.mcp_stdio import is_served, serve_stdio

    try:
        app = load_app(target)
    except EnvTorchError as error:
        raise typer.BadParameter(str(error), param_hint="TARGET") from error
    if not is_served(app):
        raise typer.BadParameter("this application was not made by create_app", param_hint="TARGET")
    serve_stdio(app.state.env_server)
