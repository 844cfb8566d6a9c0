"""What a command's exit code means, and how an error reaches a person: one sentence, and the next step."""

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
    """What was examined is not right: a check failed, a replay diverged, an image did not build."""
    MISUSED = 2
    """The command was given something that it cannot use: an option, a name, a file."""
    UNREACHABLE = 3
    """A server, an engine or the hub could not be reached, was full, or went away."""
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
    FactoryFailed: "run `envtorch check TARGET`: it says what the environment's constructor raised",
}


class Commands(TyperGroup):
    """The commands, with one place where errors of ours end: a sentence on stderr, and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        if "" not in sys.path:
            sys.path.insert(0, "")  # modules beside the person who names them, as with `python -m`
        try:
            return super().invoke(ctx)
        except EnvTorchError as error:
            raise typer.Exit(complain(error)) from error
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None


def complain(error: EnvTorchError) -> Exit:
    """Say what went wrong and what to do next; the exit code that tells it to a script."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]Error:[/bold red] {escape(error.message)}")
    logs = error.details.get("logs")
    if isinstance(error, ProviderFailed) and logs:
        console.print(f"[dim]{escape(str(logs).rstrip())}[/dim]")
    step = error.details.get("next_step") or next(
        (text for kind, text in _NEXT.items() if isinstance(error, kind)), None
    )
    if step:
        console.print(f"[yellow]Next:[/yellow] {escape(step)}")
    return next((code for kind, code in _EXITS.items() if isinstance(error, kind)), Exit.FOUND_WANTING)
