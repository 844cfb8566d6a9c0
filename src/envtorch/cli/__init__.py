"""The command line. One file per command; this one only puts them together."""

from typing import Annotated

import typer

from envtorch import __version__
from envtorch.cli.bench import bench
from envtorch.cli.build import build
from envtorch.cli.check import check
from envtorch.cli.demo import demo
from envtorch.cli.doctor import doctor
from envtorch.cli.eval import evaluate
from envtorch.cli.exits import Commands, Exit
from envtorch.cli.k8s import k8s
from envtorch.cli.mcp import mcp
from envtorch.cli.new import new
from envtorch.cli.play import play
from envtorch.cli.proxy_config import proxy_config
from envtorch.cli.push import push
from envtorch.cli.recording import recording
from envtorch.cli.replay import replay_command
from envtorch.cli.rootfs import rootfs
from envtorch.cli.serve import serve
from envtorch.cli.sweep import sweep
from envtorch.cli.wheel import wheel
from envtorch.settings import plain_fastmcp_log

__all__ = ["main"]

WRITE, USE, RECORD, DEPLOY, MACHINE = (
    "Write an environment",
    "Serve and use one",
    "Recordings",
    "Deploy",
    "This machine",
)

main = typer.Typer(
    name="envtorch",
    cls=Commands,
    help="Isolated execution environments for agentic RL.",
    epilog="Exit codes: 0 success, 1 the environment or machine is at fault, 2 the command line is at fault, "
    "3 unreachable, 4 an extra is missing.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"envtorch {__version__}")
        raise typer.Exit(Exit.OK)


@main.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """Isolated execution environments for agentic RL."""
    plain_fastmcp_log()


main.command(rich_help_panel=WRITE)(new)
main.command(rich_help_panel=WRITE)(check)
main.command(rich_help_panel=USE)(serve)
main.command(rich_help_panel=USE)(play)
main.command("eval", rich_help_panel=USE)(evaluate)
main.command(rich_help_panel=USE)(bench)
main.command(rich_help_panel=USE)(mcp)
main.command(rich_help_panel=USE)(demo)
main.command("replay", rich_help_panel=RECORD)(replay_command)
main.add_typer(recording, rich_help_panel=RECORD)
main.command(rich_help_panel=DEPLOY)(build)
main.command(rich_help_panel=DEPLOY)(push)
main.command(rich_help_panel=DEPLOY)(wheel)
main.add_typer(k8s, rich_help_panel=DEPLOY)
main.command("proxy-config", rich_help_panel=DEPLOY)(proxy_config)
main.command(rich_help_panel=MACHINE)(doctor)
main.add_typer(rootfs, rich_help_panel=MACHINE)
main.command(rich_help_panel=MACHINE)(sweep)
