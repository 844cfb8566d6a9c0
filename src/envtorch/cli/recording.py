"""`envtorch recording`: what is in a recording, and Parquet made of it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envtorch.cli.exits import Exit
from envtorch.errors import ConfigurationError

if TYPE_CHECKING:
    from envtorch.recording import Episode, Moment, Recording

__all__ = ["recording"]

recording = typer.Typer(name="recording", help="Look into recordings.", no_args_is_help=True)

FILE = Annotated[Path, typer.Argument(help="A .jsonl file of a recording, or a directory of them.")]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@recording.command("list")
def list_(path: FILE, as_json: JSON = False) -> None:
    """List the episodes of a recording. Times are UTC; `from` is the episode and step it was forked at."""
    from envtorch.recording import find_recordings

    opened, refused = _opened(find_recordings(path))
    if not opened:
        raise refused[0]
    if as_json:
        typer.echo(json.dumps([_summary(one, e) for one in opened for e in one.episodes], indent=2))
    else:
        for one in opened:
            _show_episodes(one, Console())
    for error in refused:
        typer.echo(f"Left out: {error}", err=True)
    if refused:
        raise typer.Exit(Exit.FOUND_WANTING)


def _opened(files: list[Path]) -> "tuple[list[Recording], list[ConfigurationError]]":
    """The recordings among the files, and why the others are none."""
    from envtorch.recording import Recording

    opened, refused = [], []
    for file in files:
        try:
            opened.append(Recording.open(file))
        except ConfigurationError as error:
            refused.append(error)
    return opened, refused


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
    console.print(f"[bold]{escape(one.path.name)}[/bold]: {escape(header.environment)} ({escape(versions)})")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("ep", "sess", "from", "began", "seed", "steps", "return", "secs", ""):
        left = heading in ("from", "began", "")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for episode in one.episodes:
        table.add_row(
            str(episode.number),
            str(episode.session),
            "" if episode.parent is None else f"{episode.parent}@{episode.parent_step}",
            f"{datetime.fromtimestamp(episode.started_at, UTC):%m-%d %H:%M:%S}",
            "" if episode.seed is None else str(episode.seed),
            str(episode.steps),
            f"{episode.total_reward:g}",
            f"{episode.seconds:.2f}",
            _standing(episode),
        )
    console.print(table)
    if one.is_torn:
        console.print("[yellow]The last line is torn: the server was killed while it wrote.[/yellow]")


def _standing(episode: "Episode") -> str:
    errors = f", [red]{episode.errors} failed[/red]" if episode.errors else ""
    if not episode.complete:
        return f"[red]has gaps[/red]{errors}"
    if episode.done:
        return f"[green]done[/green]{errors}"
    return ("ended" if episode.ended else "[yellow]cut short[/yellow]") + errors


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
