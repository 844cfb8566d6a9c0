"""The tab that opens a recording and steps through it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.recording import Episode, Moment, Recording, Reset, ToolCall, find_recordings
from envtorch.web.cards import error_card, history, nothing_yet, result_card, transcript
from envtorch.web.episodes import EpisodeEntry, folded
from envtorch.web.play import reward_chart
from envtorch.web.played_environment import PlayedEnvironment
from envtorch.web.theme import QUIET

__all__ = ["RecordingTab", "entry_of", "title_of"]


def entry_of(moment: Moment) -> EpisodeEntry:
    """A moment of a recording as the page shows calls."""
    seen = moment.observation
    observation = dict(seen) if isinstance(seen, Mapping) else {} if seen is None else {"result": seen}
    given = moment.given if isinstance(moment.given, Mapping) else {"action": moment.given}
    return EpisodeEntry(
        call="reset" if isinstance(moment, Reset) else "step",
        sent=given,
        observation={"tool": moment.name, **observation} if isinstance(moment, ToolCall) else observation,
        reward=None if moment.reward is None else float(moment.reward),
        done=moment.done,
        seconds=moment.seconds,
        error=None if moment.error is None else f"{moment.error.code}: {moment.error.message}",
    )


def title_of(episode: Episode) -> str:
    """What a list of episodes says of one."""
    told = [_counted(episode.steps, "step"), f"reward {episode.total_reward:.4g}"]
    told += [f"seed {episode.seed}"] if episode.seed is not None else []
    told += [f"fork of {episode.parent} at step {episode.parent_step}"] if episode.parent is not None else []
    told += [_counted(episode.errors, "error")] if episode.errors else []
    told += ["done"] if episode.done else [] if episode.ended else ["cut short"]
    return f"Episode {episode.number}: {', '.join(told)}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class RecordingTab:
    """Builds the tab inside the Blocks that is open, and answers its events.

    A visitor opens a file of their own. What this server records is listed only where the server has a lock:
    it holds everybody's episodes.
    """

    def __init__(self, subject: PlayedEnvironment, directory: Callable[[], Path | None]) -> None:
        self._code = subject.code_field
        self._directory = directory
        self._opened = gr.State(None)
        self._entries = gr.State([])
        self._build()
        self._listen()

    def _build(self) -> None:
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=300):
                self._file = gr.File(label="A recording (.jsonl)", file_types=[".jsonl"], height=110)
                self._listed = gr.Dropdown(
                    [], label="Recorded by this server", visible=False, elem_id="et-listed"
                )
                self._episode = gr.Dropdown([], label="Episode", elem_id="et-episode")
                self._about = gr.HTML(nothing_yet("`envtorch serve ... --record DIR` writes recordings."))
                with gr.Row():
                    self._back = gr.Button("◀ Back", size="md", min_width=80, elem_id="et-back")
                    self._on = gr.Button("On ▶", size="md", min_width=80, elem_id="et-on")
                self._step = gr.Slider(0, 1, value=0, step=1, label="Call", interactive=True, elem_id="et-at")
            with gr.Column(scale=3, min_width=320):
                self._result = gr.HTML(elem_id="et-recorded")
                self._terminal = gr.HTML(visible=self._code is not None)
                self._chart = gr.HTML()
                self._past = gr.HTML()
                with gr.Accordion("Raw JSON", open=False):
                    self._raw = gr.JSON(show_label=False)
        self._shown = [self._result, self._terminal, self._chart, self._past, self._raw]

    def _listen(self) -> None:
        opened = [self._opened, self._about, self._episode]
        chosen = [self._entries, self._step, *self._shown]
        for event, source in ((self._file.upload, self._file), (self._listed.input, self._listed)):
            event(self._open, source, opened, **QUIET).then(
                self._choose, [self._opened, self._episode], chosen, **QUIET
            )
        self._episode.input(self._choose, [self._opened, self._episode], chosen, **QUIET)
        at = [self._entries, self._step]
        self._step.input(self._show, at, self._shown, show_progress="hidden", **QUIET)
        self._back.click(self._earlier, at, [self._step, *self._shown], show_progress="hidden", **QUIET)
        self._on.click(self._later, at, [self._step, *self._shown], show_progress="hidden", **QUIET)

    def on_select(self, tab: gr.Tab) -> None:
        """List what there is whenever the tab is opened."""
        tab.select(self._list, None, self._listed, **QUIET)

    def _list(self) -> Any:
        directory = self._directory()
        if directory is None:
            return gr.update(choices=[], value=None, visible=False)
        try:
            found = find_recordings(directory)
        except ConfigurationError:  # nothing was played yet
            found = []
        return gr.update(choices=[path.name for path in reversed(found)], value=None, visible=True)

    def _open(self, name: str | None) -> tuple[str | None, str, Any]:
        """Open an uploaded file, which Gradio names by its path, or a listed one, by its name alone."""
        if not name:
            return None, "", gr.update(choices=[], value=None)
        path = Path(name)
        directory = self._directory()
        if directory is not None and path.name == name:
            path = directory / name
        try:
            recording = Recording.open(path)
        except EnvTorchError as error:
            told = error_card(error, title="This cannot be opened")
            return None, told, gr.update(choices=[], value=None)
        choices = [(title_of(episode), episode.number) for episode in recording.episodes]
        versions = ", ".join(f"{name} {version}" for name, version in recording.header.versions.items())
        about = nothing_yet(f"{recording.header.environment}, {len(choices)} episodes. {versions}")
        return str(path), about, gr.update(choices=choices, value=choices[0][1] if choices else None)

    def _choose(self, opened: str | None, number: int | None) -> list[Any]:
        entries: list[EpisodeEntry] = []
        if opened is not None and number is not None:
            recording = Recording.open(opened)
            entries = [entry_of(moment) for moment in recording.moments(recording.episode(number))]
        last = max(1, len(entries) - 1)
        return [entries, gr.update(minimum=0, maximum=last, value=0), *self._show(entries, 0)]

    def _earlier(self, entries: list[EpisodeEntry], at: float) -> list[Any]:
        return self._moved(entries, int(at) - 1)

    def _later(self, entries: list[EpisodeEntry], at: float) -> list[Any]:
        return self._moved(entries, int(at) + 1)

    def _moved(self, entries: list[EpisodeEntry], at: int) -> list[Any]:
        at = min(max(0, at), max(0, len(entries) - 1))
        return [at, *self._show(entries, at)]

    def _show(self, entries: list[EpisodeEntry], at: float) -> list[Any]:
        """Where the recording stands after so many calls."""
        so_far = entries[: int(at) + 1]
        if not so_far:
            return ["", "", "", "", None]
        return [
            result_card(so_far),
            transcript(so_far, self._code.name) if self._code else "",
            reward_chart(so_far),
            history(so_far),
            folded(so_far[-1].payload),
        ]
