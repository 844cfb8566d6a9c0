"""A recording in the terminal: episodes as tabs, stepped through line by line."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Tab, Tabs

from envtorch.cli.playing.branches import Turn
from envtorch.cli.playing.terminal_app import Pages
from envtorch.cli.playing.views import turn_of
from envtorch.recording import Episode, Recording

__all__ = ["RecordingApp"]


class RecordingApp(Pages):
    """Looks at what was recorded; nothing runs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j,space", "move(1)", "Next step", priority=True),
        Binding("up,k", "move(-1)", "Step before", priority=True),
        Binding("right,n", "episode(1)", "Next episode", priority=True),
        Binding("left,p", "episode(-1)", "Episode before", priority=True),
        Binding("q,ctrl+q", "quit", "Quit", priority=True),
    ]

    def __init__(self, recording: Recording, *, episode: int | None = None) -> None:
        super().__init__()
        self.recording = recording
        self.sub_title = f"{recording.path.name} ({recording.header.environment})"
        self._index = next((i for i, e in enumerate(recording.episodes) if e.number == episode), 0)
        self._turns: list[Turn] = []

    @property
    def turns(self) -> Sequence[Turn]:
        return self._turns

    @property
    def episode(self) -> Episode:
        return self.recording.episodes[self._index]

    async def on_mount(self) -> None:
        self.draw_frame()
        tabs = self.query_one("#tabs", Tabs)
        for index, episode in enumerate(self.recording.episodes):
            origin = "" if episode.parent is None else f" ⑂{episode.parent}"
            await tabs.add_tab(Tab(f"{episode.number}{origin}", id=f"episode-{index}"))
        if not self.recording.episodes:
            self.say("there is no episode in this recording", wrong=True)
            return
        tabs.active = f"episode-{self._index}"
        self.query_one("#history", DataTable).focus()

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        self._index = int(str(event.tab.id).removeprefix("episode-"))
        episode = self.episode
        self._turns = [turn_of(moment) for moment in self.recording.moments(episode)]
        self.show_history(at=0)
        fork = (
            "" if episode.parent is None else f"   a fork of {episode.parent} at step {episode.parent_step}"
        )
        seed = "" if episode.seed is None else f"   seed {episode.seed}"
        standing = "" if episode.ended else "   cut short"
        self.say(
            f"episode {episode.number} of {len(self.recording.episodes)}{seed}   "
            f"{_count(episode.steps)}   return {episode.total_reward:g}{fork}{standing}"
        )

    def action_episode(self, by: int) -> None:
        index = (self._index + by) % len(self.recording.episodes)
        self.query_one("#tabs", Tabs).active = f"episode-{index}"


def _count(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"
