"""`envtorch recording`: what is in a recording, and Parquet made of it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from envtorch.recording import Episode, Moment, Recording

__all__ = ["recording"]

recording = typer.Typer(name="recording", help="Look into recordings.", no_args_is_help=True)

FILE = Annotated[Path, typer.Argument(help="A .jsonl file of a recording, or a directory of them.")]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@recording.command("list")
def list_(path: FILE, as_json: JSON = False) -> None:
    """List the episodes of a recording."""
    from envtorch.recording import Recording, find_recordings

    opened = [Recording.open(file) for file in find_recordings(path)]
    if as_json:
        typer.echo(json.dumps([_summary(one, e) for one in opened for e in one.episodes], indent=2))
        return
    for one in opened:
        _show_episodes(one, Console())


@recording.command()
def show(
    path: FILE,
    episode: Annotated[int, typer.Option(help="Which one; `list` has their numbers.")] = 1,
    as_json: JSON = False,
) -> None:
    """Print what happened in one episode, step by step."""
    from envtorch.recording import Recording, find_recordings

    one = Recording.open(find_recordings(path)[-1])
    chosen = one.episode(episode)
    moments = one.moments(chosen)
    if as_json:
        typer.echo(json.dumps([_plain(moment) for moment in moments], indent=2))
        return
    console = Console(highlight=False)
    for moment in moments:
        _show_moment(moment, chosen, console)


@recording.command()
def export(
    path: FILE,
    to: Annotated[
        Path | None, typer.Option(help="The Parquet file; by default beside the recording.")
    ] = None,
) -> None:
    """Write a recording as Parquet, which `datasets` loads; a server does so by itself when it stops."""
    from envtorch.errors import ConfigurationError
    from envtorch.recording import find_recordings
    from envtorch.recording.parquet import export as write

    found = find_recordings(path)
    if to is not None and len(found) > 1:
        raise ConfigurationError(f"{path} has {len(found)} recordings: leave --to out, or name one of them")
    for file in found:
        typer.echo(str(write(file, to)))


def _show_episodes(one: "Recording", console: Console) -> None:
    header = one.header
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    table = Table(title=f"{one.path.name}: {header.environment} ({versions})", title_justify="left")
    for heading in (
        "episode",
        "session",
        "from",
        "began",
        "seed",
        "steps",
        "return",
        "seconds",
        "errors",
        "",
    ):
        table.add_column(heading, justify="left" if heading in ("from", "began", "") else "right")
    for episode in one.episodes:
        origin = "" if episode.parent is None else f"{episode.parent} at {episode.parent_step}"
        table.add_row(
            str(episode.number),
            str(episode.session),
            origin,
            f"{datetime.fromtimestamp(episode.started_at, UTC):%Y-%m-%d %H:%M:%S}",
            "" if episode.seed is None else str(episode.seed),
            str(episode.steps),
            f"{episode.total_reward:g}",
            f"{episode.seconds:.3f}",
            str(episode.errors or ""),
            _standing(episode),
        )
    console.print(table)
    if one.is_torn:
        console.print("[yellow]The last line is torn: the server was killed while it wrote.[/yellow]")


def _standing(episode: "Episode") -> str:
    if not episode.complete:
        return "[red]has gaps[/red]"
    if episode.done:
        return "[green]done[/green]"
    return "ended" if episode.ended else "[yellow]cut short[/yellow]"


def _show_moment(moment: "Moment", episode: "Episode", console: Console) -> None:
    own = "" if episode.parent is None or moment.episode == episode.number else " [dim](of the parent)[/dim]"
    kind = {"Reset": "reset", "Step": "step", "ToolCall": "tool"}[type(moment).__name__]
    console.rule(f"[bold]{moment.step}[/bold] {kind}{own}", align="left", style="dim")
    console.print(f"[cyan]given[/cyan]   {escape(json.dumps(moment.given))}")
    if moment.error is not None:
        console.print(f"[red]error[/red]   {escape(moment.error.code)}: {escape(moment.error.message)}")
        return
    console.print(f"[cyan]seen[/cyan]    {escape(json.dumps(moment.observation))}")
    reward = "none" if moment.reward is None else moment.reward
    done = "  [green]done[/green]" if moment.done else ""
    console.print(f"[cyan]reward[/cyan]  {reward}{done}  [dim]{moment.seconds * 1000:.1f} ms[/dim]")


def _summary(one: "Recording", episode: "Episode") -> dict[str, Any]:
    from dataclasses import asdict

    return {"file": str(one.path), "environment": one.header.environment, **asdict(episode)}


def _plain(moment: "Moment") -> dict[str, Any]:
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(moment)
    return told
