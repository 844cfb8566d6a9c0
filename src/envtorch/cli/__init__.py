"""The command line. One file per command; this one only puts them together."""

import typer

from envtorch.cli.build import build
from envtorch.cli.check import check
from envtorch.cli.demo import demo
from envtorch.cli.doctor import doctor
from envtorch.cli.k8s import k8s
from envtorch.cli.mcp import mcp
from envtorch.cli.serve import serve
from envtorch.cli.sweep import sweep

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
main.command()(build)
main.command()(sweep)
main.command()(demo)
main.add_typer(k8s)
