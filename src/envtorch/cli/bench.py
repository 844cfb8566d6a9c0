"""`envtorch bench`: how fast a server answers."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from envtorch.cli.exits import Exit
from envtorch.cli.serving import TARGET_OR_URL_HELP, served
from envtorch.errors import ConfigurationError
from envtorch.settings import Settings
from envtorch.shown_urls import shown_url

if TYPE_CHECKING:
    from envtorch.cli.benching import Measured

__all__ = ["bench"]


def bench(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_OR_URL_HELP)],
    sessions: Annotated[str, typer.Option(help="How many at once; several runs as in 1,8,64.")] = "1,8",
    seconds: Annotated[float, typer.Option(min=0.01, help="How long each run measures.")] = 3.0,
    action: Annotated[
        str | None, typer.Option(help="The action of every step, as JSON; else actions are made up.")
    ] = None,
    wire: Annotated[str, typer.Option(help="json, msgpack, or openenv.")] = "json",
    seed: Annotated[int, typer.Option(help="The seed of the episodes and of made-up actions.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Measure steps per second and latency, from this one process, at several numbers of sessions."""
    from envtorch.cli.benching import Load, measure

    counts = _counts_in(sessions)
    if wire not in ("json", "msgpack", "openenv"):
        raise ConfigurationError(f"--wire is json, msgpack or openenv, not {wire!r}")
    runs: list[Measured] = []
    with served(target) as url, _progress() as progress:
        token = Settings.from_environ().token
        load = Load.of(url, token=token, wire=wire, action=_action_in(action), seed=seed)
        for count in counts:
            task = progress.add_task(f"{count} session{'' if count == 1 else 's'}", total=seconds)
            runs.append(measure(load, count, seconds, partial(_advance, progress, task)))
    if as_json:
        typer.echo(
            json.dumps(
                {"target": shown_url(target), "wire": wire, "runs": [run.told for run in runs]}, indent=2
            )
        )
    else:
        _show(target, runs)
    raise typer.Exit(Exit.FOUND_WANTING if any(run.failed for run in runs) else Exit.OK)


def _advance(progress: Progress, task: TaskID, now: float) -> None:
    progress.update(task, completed=now)


def _progress() -> Progress:
    columns = (TextColumn("{task.description:>14}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _counts_in(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise ConfigurationError(f"--sessions is a number, or several as in 1,8,64, not {text!r}")
    return counts


def _action_in(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        read = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--action is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise ConfigurationError("--action is a JSON object")
    return read


def _show(target: str, runs: "list[Measured]") -> None:
    table = Table(title=shown_url(target), title_justify="left")
    for heading in ("sessions", "steps/s", "p50 ms", "p99 ms", "steps", "episodes", "failed"):
        table.add_column(heading, justify="right")
    for run in runs:
        cells = (
            run.sessions,
            f"{run.steps_per_s:,.0f}",
            f"{run.p50_s * 1000:.2f}",
            f"{run.p99_s * 1000:.2f}",
        )
        failed = f"[red]{run.failed}[/red]" if run.failed else "0"
        table.add_row(*map(str, cells), f"{run.steps:,}", f"{run.episodes:,}", failed)
    console = Console(highlight=False)
    console.print(table)
    first = next((run.first_failure for run in runs if run.first_failure), None)
    if first is not None:
        console.print(f"[red]The first failure:[/red] {first}", markup=True)
        console.print("[yellow]Next:[/yellow] give an action that the environment takes: --action '{...}'")
