"""`envtorch play`: an environment in the terminal, or a recording of one."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from envtorch.cli.serving import TARGET_OR_URL_HELP, action_schema_at, served
from envtorch.errors import ConfigurationError
from envtorch.extras import missing_extra
from envtorch.settings import Settings
from envtorch.shown_urls import shown_url

__all__ = ["play"]


def play(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help=f"{TARGET_OR_URL_HELP} Or a recording, a .jsonl file.")
    ],
    seed: Annotated[int | None, typer.Option(help="The seed of the first episode.")] = None,
    options: Annotated[
        str | None, typer.Option("--reset", help="Options of every reset, as JSON: '{\"level\": 2}'.")
    ] = None,
    episode: Annotated[int | None, typer.Option(help="Of a recording: which episode to begin with.")] = None,
) -> None:
    """Play by hand in the terminal: fill in actions, see what comes, fork and go back."""
    _require_textual()
    if target.endswith(".jsonl") or (Path(target).is_dir() and any(Path(target).glob("*.jsonl"))):
        _open_recording(Path(target), episode)
        return
    given = _options_in(options)
    with served(target) as url:
        from envtorch.cli.playing.branches import Game
        from envtorch.cli.playing.terminal_app import PlayApp

        token = Settings.from_environ().token
        schema = action_schema_at(url, token)
        _require_terminal()
        game = Game(url, token=token, options=given)
        PlayApp(game, name=shown_url(target), schema=schema, seed=seed).run()


def _open_recording(path: Path, episode: int | None) -> None:
    from envtorch.cli.playing.recorded import RecordingApp
    from envtorch.recording import Recording, find_recordings

    recording = Recording.open(find_recordings(path)[-1])
    if episode is not None:
        recording.episode(episode)  # it is told now if there is none
    _require_terminal()
    RecordingApp(recording, episode=episode).run()


def _require_textual() -> None:
    from importlib.util import find_spec

    if find_spec("textual") is None:
        raise missing_extra("play", "play needs the textual package")


def _require_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigurationError(
            "play draws on a terminal, and the standard input or output is none",
            next_step="run it in a terminal, without pipes; `envtorch recording show` prints a recording",
        )


def _options_in(text: str | None) -> dict[str, Any]:
    try:
        read = json.loads(text) if text else {}
    except ValueError as error:
        raise ConfigurationError(f"--reset is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise ConfigurationError("--reset is a JSON object: the keywords of reset")
    return read
