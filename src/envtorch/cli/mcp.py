"""`envtorch mcp`: an environment as tools, for an agent that starts its tools as programs."""

from typing import Annotated

import typer

from envtorch.cli.serving import TARGET_HELP
from envtorch.errors import ConfigurationError

__all__ = ["mcp"]


def mcp(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP)],
) -> None:
    """Serve an environment's tools over standard input and output, as MCP."""
    from envtorch.server.doors.mcp_stdio import is_served, protocol_output, serve_stdio
    from envtorch.targets import load_app

    with protocol_output() as output:
        app = load_app(target)
        if not is_served(app):
            raise ConfigurationError(
                f"{target} was not made by create_app, so its tools cannot be served",
                next_step="name the environment itself, as module:Environment",
            )
        serve_stdio(app.state.env_server, said=output)
