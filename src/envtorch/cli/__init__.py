"""The command line. One file per command; this one only puts them together."""

import typer

from envtorch.cli.check import check
from envtorch.cli.demo import demo
from envtorch.cli.doctor import doctor
from envtorch.cli.mcp import mcp
from envtorch.cli.serve import serve

__all__ = ["main"]

main = typer.Typer(
    name="envtorch",
    help="Isolated execution environments for agentic RL.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_show_locals=False,
)
main.command()(serve)
main.command()(check)
main.command()(doctor)
main.command()(mcp)
main.command()(demo)
