"""`envtorch check`: whether an environment works in every way a trainer uses it."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console

from envtorch.cli.check_child import LOADING, check_in_child
from envtorch.cli.exits import Exit
from envtorch.cli.hang_report import answer_where
from envtorch.cli.serving import TARGET_HELP, is_url
from envtorch.cli.task_command import check_tasks, holds_tasks
from envtorch.errors import ConfigurationError

if TYPE_CHECKING:
    from envtorch.testing import Report

__all__ = ["check"]

CHECK_S = 300.0
CALL_S = 60.0


def check(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"{TARGET_HELP} Or the URL of a server.")],
    actions: Annotated[
        Path | None,
        typer.Option(help="The path of a JSON file: a list of actions to play; made up by default."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the episodes.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process",
            help="Play in this process, for a debugger. The default is a child process, so that an "
            "environment that ends or crashes its process is reported too.",
        ),
    ] = False,
    root: Annotated[
        str | None,
        typer.Option(help="Of tasks: the root file system their environments are built on; this machine's."),
    ] = None,
    grading: Annotated[
        Literal["image", "artifacts", "live", "agent"] | None,
        typer.Option(help="Of tasks: what those are graded on that choose nothing themselves; image."),
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout-s",
            min=0.1,
            show_default=False,
            help=f"The most seconds that loading a target, or one check of it, may take ({CHECK_S:g}), "
            f"or one call of a server ({CALL_S:g}). Not with --in-process.",
        ),
    ] = None,
    progress_in: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Play an environment in every way a trainer would, and report what is wrong.

    Of a directory of tasks, every task is played: its solution must score 1, and doing nothing must score
    less.
    """
    if holds_tasks(target):
        raise typer.Exit(check_tasks(Path(target), as_json=as_json, root=root, grading=grading))
    for option, value in (("--root", root), ("--grading", grading)):
        if value is not None:
            raise ConfigurationError(f"{option} is for directories of tasks, and {target} is none")
    given = _actions_in(actions) if actions is not None else None
    if is_url(target):
        from envtorch.cli.check_server import check_server

        _finish(
            check_server(target, actions=given, seed=seed, timeout_s=timeout_s or CALL_S), as_json=as_json
        )
    if in_process:
        if progress_in is not None:
            answer_where(progress_in)
        with _stdout_to_stderr():
            report = _check_target(target, given, seed, progress_in)
        _finish(report, as_json=as_json)
    options = ["--seed", str(seed), *(["--actions", str(actions)] if actions is not None else [])]
    ended = check_in_child(
        target, [*options, *(["--json"] if as_json else [])], timeout_s=timeout_s or CHECK_S
    )
    if isinstance(ended, int):
        raise typer.Exit(ended)
    _finish(ended, as_json=as_json)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send to stderr what the environment and its child processes print: stdout is for the report."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _finish(report: "Report", *, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(json.dumps(_told(report), indent=2))
    else:
        Console(highlight=False, soft_wrap=True, markup=False).print(str(report))
    raise typer.Exit(Exit.OK if report.ok else Exit.FOUND_WANTING)


def _check_target(
    target: str, actions: list[dict[str, Any]] | None, seed: int, progress_in: Path | None
) -> "Report":
    from envtorch.server import HTTPEnvServer
    from envtorch.targets import load_app
    from envtorch.testing import check_env

    def note(check: str) -> None:
        if progress_in is not None:
            (progress_in / "check").write_text(check)

    note(LOADING)
    app = load_app(target)
    server: HTTPEnvServer | None = getattr(getattr(app, "state", None), "env_server", None)
    if server is None:
        raise ConfigurationError(
            f"{target} was not made by create_app, so its environment cannot be built alone",
            next_step="name the environment itself, as module:Environment, or serve it and check its URL",
        )
    spec = server.spec

    report = check_env(
        server.sessions.factory.make,
        spec.action,
        spec.observation,
        actions=actions,
        seed=seed,
        progress=note,
    )
    note("")
    return report


def _actions_in(path: Path) -> list[dict[str, Any]]:
    try:
        read = json.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(
            f"--actions is the path of a JSON file, and {str(path)!r} cannot be read: {error.strerror}",
            next_step="write the list of actions to a file, and name the file",
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"the actions in {path} cannot be read: {error}") from error
    if not isinstance(read, list) or not all(isinstance(action, dict) for action in read):
        raise ConfigurationError(f"{path} must hold a JSON list of actions, each an object")
    return read


def _told(report: "Report") -> dict[str, Any]:
    findings = [
        {
            "check": f.check,
            "severity": f.severity.value,
            "message": f.message,
            "advice": f.advice,
            "traceback": f.traceback,
        }
        for f in report.findings
    ]
    return {
        "environment": report.environment,
        "ok": report.ok,
        "checks": list(report.checks),
        "findings": findings,
        "not_run": dict(report.not_run),
        "notes": list(report.notes),
    }
