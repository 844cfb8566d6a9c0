"""`envtorch replay`: a recording, played again."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from envtorch.cli.exits import Exit
from envtorch.cli.serving import TARGET_OR_URL_HELP, served
from envtorch.errors import ConfigurationError
from envtorch.settings import Settings

if TYPE_CHECKING:
    from envtorch.recording import Comparison, Divergence, Moment, Recording, Replay

__all__ = ["replay_command"]

MOST_DIFFERENCES = 8


def replay_command(
    recording: Annotated[Path, typer.Argument(help="A .jsonl file of a recording, or a directory of them.")],
    target: Annotated[
        str | None,
        typer.Option(help=f"{TARGET_OR_URL_HELP} By default the bundled environment that was recorded."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="A path whose values may differ, as in observation.elapsed_s; * is any part."),
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="By how much numbers may differ.")] = 0.0,
    stop: Annotated[bool, typer.Option("--stop", help="Stop at the first divergence.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Play a recording again and report the first divergence. Exits with 1 if there is one."""
    from envtorch.recording import Comparison, Recording, Replay, find_recordings

    opened = [Recording.open(path) for path in find_recordings(recording)]
    comparison = Comparison(tuple(ignore or ()), tolerance)
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    total = Replay()
    with served(target or _recorded_environment(opened)) as url:
        for one in opened:
            found = _played(one, url, comparison, stop, console)
            if as_json:
                typer.echo(json.dumps(_told(one, found)))
            else:
                _show(one, found, console)
            total.divergences += found.divergences
            if stop and total.divergences:
                break
    raise typer.Exit(Exit.OK if total.ok else Exit.FOUND_WANTING)


def _recorded_environment(recordings: "list[Recording]") -> str:
    names = {recording.header.environment for recording in recordings}
    name = names.pop()
    if names or not _is_bundled(name):
        raise ConfigurationError(f"say what to replay {name} on: --target TARGET, or --target URL")
    return name


def _is_bundled(name: str) -> bool:
    from importlib.util import find_spec

    return name.isidentifier() and find_spec(f"envtorch.envs.{name}") is not None


def _played(
    recording: "Recording", url: str, comparison: "Comparison", stop: bool, console: Console
) -> "Replay":
    from envtorch.recording import replay
    from envtorch.testing.players import player_on

    token = Settings.from_environ().token
    calls = sum(episode.steps + 1 for episode in recording.episodes)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"replaying {recording.path.name}", total=calls)

        def advance(moment: "Moment") -> None:
            progress.advance(task)

        return replay(
            recording,
            lambda way: player_on(url, way, token=token),
            comparison=comparison,
            stop_at_first=stop,
            on_moment=advance,
        )


def _show(recording: "Recording", found: "Replay", console: Console) -> None:
    played = f"{found.episodes} episodes, {found.moments} calls"
    if found.ok:
        console.print(f"[green]{recording.path.name}: {played}, no divergence[/green]")
    else:
        count = len(found.divergences)
        console.print(f"[red]{recording.path.name}: {played}, {count} of the episodes diverged[/red]")
    for skipped in found.skipped[:MOST_DIFFERENCES]:
        console.print(
            f"[yellow]episode {skipped.episode} left at step {skipped.step}:[/yellow] {skipped.reason}"
        )
    if found.first is not None:
        _show_divergence(found.first, console)
        shown = f"envtorch recording show {recording.path} --episode {found.first.episode}"
        console.print(f"\nStep through it: [bold]{escape(shown)}[/bold]")


def _show_divergence(first: "Divergence", console: Console) -> None:
    moment = first.moment
    console.print(f"\nThe first divergence is in [bold]episode {first.episode}, step {moment.step}[/bold]:")
    given = escape(_short(moment.given))
    console.print(f"  {'reset' if moment.step == 0 else 'given'}  {given}\n")
    for difference in first.differences[:MOST_DIFFERENCES]:
        for line in difference.lines():
            colour = {"-": "red", "+": "green", "@": "dim"}.get(line.strip()[:1], "bold")
            console.print(f"  [{colour}]{escape(line)}[/{colour}]")
    left = len(first.differences) - MOST_DIFFERENCES
    if left > 0:
        console.print(f"  ... and {left} more")
    if not first.seeded:
        console.print(
            "\n[yellow]The episode was begun without a seed, so chance alone may explain it.[/yellow]"
        )


def _short(value: Any, longest: int = 300) -> str:
    text = json.dumps(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def _told(recording: "Recording", found: "Replay") -> dict[str, Any]:
    first = found.first
    return {
        "recording": str(recording.path),
        "ok": found.ok,
        "episodes": found.episodes,
        "calls": found.moments,
        "diverged": [divergence.episode for divergence in found.divergences],
        "skipped": [asdict(skipped) for skipped in found.skipped],
        "first": None
        if first is None
        else {
            "episode": first.episode,
            "step": first.moment.step,
            "seeded": first.seeded,
            "differences": ["\n".join(difference.lines()) for difference in first.differences],
        },
    }
