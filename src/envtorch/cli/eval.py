"""`envtorch eval`: how a model does on an environment's tasks."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from envtorch.cli.exits import Exit
from envtorch.cli.serving import TARGET_OR_URL_HELP, is_url, served
from envtorch.errors import ConfigurationError
from envtorch.settings import Settings

if TYPE_CHECKING:
    from envtorch.evaluation import EvalReport, Evaluation

__all__ = ["evaluate", "incomplete"]

DEFAULT_TASKS = 16
RECORDING = "recording"
"""The directory of the episodes, in that of the results."""
MODEL, TASKS, RESULTS = "The model", "The tasks", "The results"


def evaluate(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_OR_URL_HELP)],
    model: Annotated[
        str,
        typer.Option(
            help="The URL of an OpenAI-compatible endpoint, as http://127.0.0.1:8080/v1; or "
            "scripted:FILE.py:FUNCTION, a function from messages to text.",
            rich_help_panel=MODEL,
        ),
    ],
    model_name: Annotated[
        str | None,
        typer.Option(help="Which model of the endpoint; else its only one.", rich_help_panel=MODEL),
    ] = None,
    temperature: Annotated[float, typer.Option(rich_help_panel=MODEL, help="Sampling temperature.")] = 1.0,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens in a completion.", rich_help_panel=MODEL)
    ] = 1024,
    stream: Annotated[
        bool, typer.Option("--stream", help="Have completions streamed.", rich_help_panel=MODEL)
    ] = False,
    requests_per_s: Annotated[
        float | None, typer.Option(help="The most requests in a second.", rich_help_panel=MODEL)
    ] = None,
    tokens_per_minute: Annotated[
        float | None,
        typer.Option(help="The most tokens in a minute, read and said.", rich_help_panel=MODEL),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="How many of the environment's tasks; or a file of tasks (.jsonl, .parquet), or "
            f"hf:NAME:CONFIG:SPLIT. [default: {DEFAULT_TASKS}]",
            rich_help_panel=TASKS,
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which split of the environment's tasks.", rich_help_panel=TASKS)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="The first so many tasks of a file.", rich_help_panel=TASKS)
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How often each task is played.")] = 8,
    max_turns: Annotated[int, typer.Option(min=1, help="The most completions in an episode.")] = 20,
    concurrency: Annotated[int, typer.Option(min=1, help="The most sessions at once.")] = 64,
    step_timeout: Annotated[float | None, typer.Option(help="Seconds that a step may take.")] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="FILE.py:FUNCTION or module:function, an async function from a Candidate to a number; else "
            "the environment's rewards.",
        ),
    ] = None,
    pass_at: Annotated[
        float, typer.Option(help="The reward from which on a sample passes.", rich_help_panel=RESULTS)
    ] = 1.0,
    price_in: Annotated[
        float | None, typer.Option(help="For a million tokens read.", rich_help_panel=RESULTS)
    ] = None,
    price_out: Annotated[
        float | None, typer.Option(help="For a million tokens said.", rich_help_panel=RESULTS)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The directory of the results. [default: evals/TARGET-MODEL]", rich_help_panel=RESULTS
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start over, without what was played before.", rich_help_panel=RESULTS),
    ] = False,
    record: Annotated[
        bool,
        typer.Option(
            "--record", help="Also record every episode, for the web page.", rich_help_panel=RESULTS
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON.", rich_help_panel=RESULTS)
    ] = False,
) -> None:
    """Play an environment's tasks with a model, several times each, and report how it did.

    An evaluation that was interrupted, or has lost samples, goes on when the same command is given again.
    """
    from envtorch.cli.evaluated import EvalRun, ModelChoice, TaskWish, directory_of

    choice = ModelChoice(
        model, model_name, temperature, max_tokens, stream, requests_per_s, tokens_per_minute
    )
    run = EvalRun(
        target=target,
        model=choice,
        tasks=TaskWish.of(tasks, split, limit, DEFAULT_TASKS),
        samples=samples,
        max_turns=max_turns,
        concurrency=concurrency,
        step_timeout_s=step_timeout,
        scorer=score,
        passes_at=pass_at,
        price_in=price_in,
        price_out=price_out,
        token=Settings.from_environ().token,
    )
    if record and is_url(target):
        raise ConfigurationError("--record is for a target that is served here: a server records by itself")
    directory = output or directory_of(target, asyncio.run(choice.named()))
    if fresh and directory.exists():
        _remove(directory)
    options = ["--record", str(directory / RECORDING)] if record else []
    try:
        with served(target, *options) as url:
            evaluation, report = asyncio.run(run.play(url, directory, shows_progress=not as_json))
    except KeyboardInterrupt:
        typer.echo(f"Interrupted: the same command goes on where it was, in {directory}", err=True)
        raise
    _show(evaluation, report, as_json=as_json)
    if report.lost:
        typer.echo(incomplete(report), err=True)
        raise typer.Exit(Exit.UNREACHABLE)


def incomplete(report: "EvalReport") -> str:
    """What lost samples, and what to do next."""
    endpoint = report.failed_endpoint
    lost_to = "the infrastructure" if endpoint is None else f"the model's endpoint ({endpoint.message})"
    lost = f"{report.lost} of {report.summary.count} samples were lost to {lost_to}"
    return f"Incomplete: {lost}. The same command plays their tasks again."


def _remove(directory: Path) -> None:
    """Remove an evaluation, and nothing else that somebody may have named by mistake."""
    if not (directory / "settings.json").exists():
        raise ConfigurationError(f"{directory} holds no evaluation: it is not removed")
    shutil.rmtree(directory)


def _show(evaluation: "Evaluation", report: "EvalReport", *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report.told(), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(report.table())
    if report.lacks_rewards:
        console.print("[yellow]No reward was given, so nothing can pass: see --score.[/yellow]")
    if report.worst:
        console.print(
            f"[bold]The worst:[/bold] {escape(', '.join(result.task.id for result in report.worst))}"
        )
    console.print(f"[bold]Report:[/bold] {escape(str(evaluation.directory / 'report.html'))}")
    recording = evaluation.directory / RECORDING
    if recording.exists():
        console.print(
            f"[bold]Recording:[/bold] {escape(str(recording))}, for `envtorch play` and the web page"
        )
