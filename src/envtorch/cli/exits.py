"""Exit codes, and how an error is shown: one sentence, the author's own frames, and the next step."""

import enum
import sys
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from envtorch.errors import (
    CapacityReached,
    ConfigurationError,
    ConnectFailed,
    Draining,
    EngineUnavailable,
    EnvTorchError,
    FactoryFailed,
    MissingExtra,
    ProviderFailed,
    SessionLost,
    TimedOut,
    Unauthorized,
)

__all__ = ["Commands", "Exit", "complain"]


class Exit(enum.IntEnum):
    """Exit codes. They are the same for every command."""

    OK = 0
    FOUND_WANTING = 1
    """The environment or the machine is at fault: a module cannot be loaded, a constructor raises, a check
    failed, a replay diverged, an image did not build."""
    MISUSED = 2
    """The command line is at fault: an option, a name or a file that cannot be used."""
    UNREACHABLE = 3
    """A server, an engine or the hub could not be reached, was full, or went away; an evaluation has lost
    samples by that."""
    MISSING_EXTRA = 4
    """An optional package is not installed."""
    INTERRUPTED = 130


_EXITS: Mapping[type[EnvTorchError], Exit] = {
    MissingExtra: Exit.MISSING_EXTRA,
    ConfigurationError: Exit.MISUSED,
    ConnectFailed: Exit.UNREACHABLE,
    SessionLost: Exit.UNREACHABLE,
    CapacityReached: Exit.UNREACHABLE,
    Draining: Exit.UNREACHABLE,
    Unauthorized: Exit.UNREACHABLE,
    TimedOut: Exit.UNREACHABLE,
    EngineUnavailable: Exit.UNREACHABLE,
}

_NEXT: Mapping[type[EnvTorchError], str] = {
    ConnectFailed: "is the server up? `envtorch serve TARGET` starts one, and says where it listens",
    Unauthorized: "set ENVTORCH_TOKEN to a token that the server takes",
    CapacityReached: "wait for a session to end, or serve with room for more: `envtorch serve --sessions N`",
    EngineUnavailable: "start Docker or Podman, or set DOCKER_HOST; `envtorch doctor` says what answers",
    MissingExtra: "run the command named above in the virtual environment of EnvTorch",
    FactoryFailed: "run `envtorch check TARGET`: it shows what the environment's constructor raised",
}


class Commands(TyperGroup):
    """The commands, with one place that shows errors: a sentence on stderr, and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        if "" not in sys.path:
            sys.path.insert(0, "")  # modules in the working directory, as with `python -m`
        try:
            return super().invoke(ctx)
        except EnvTorchError as error:
            raise typer.Exit(complain(error, ctx.invoked_subcommand or "")) from error
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None


def complain(error: EnvTorchError, command: str) -> Exit:
    """Print what went wrong and what to do next; return the exit code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
    reason = error.details.get("reason") if isinstance(error, FactoryFailed) else None
    sentence = f"{error.message.rstrip('.')}: {reason}" if reason else error.message
    console.print(f"[bold red]Error:[/bold red] {escape(sentence)}")
    logs = error.details.get("logs") if isinstance(error, ProviderFailed) else error.details.get("traceback")
    if logs:
        console.print(f"[dim]{escape(str(logs).rstrip())}[/dim]")
    console.print(f"[yellow]Next:[/yellow] {escape(_next_step(error, command))}")
    return next((code for kind, code in _EXITS.items() if isinstance(error, kind)), Exit.FOUND_WANTING)


def _next_step(error: EnvTorchError, command: str) -> str:
    given = error.details.get("next_step")
    if given:
        return str(given)
    if error.details.get("traceback"):
        return "correct the line that is shown last, and run the command again"
    known = (text for kind, text in _NEXT.items() if isinstance(error, kind))
    return next(known, f"`envtorch {command} --help` lists what the command takes")
