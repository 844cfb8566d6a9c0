"""The tab that puts two branches side by side."""

from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from typing import Any

import gradio as gr

from envtorch.web.cards import history, nothing_yet, result_card
from envtorch.web.charts import lines
from envtorch.web.episodes import EpisodeEntry, Track, total_reward
from envtorch.web.theme import QUIET
from envtorch.web.visits import Visits

__all__ = ["CompareTab", "parted_at"]


def parted_at(left: Sequence[EpisodeEntry], right: Sequence[EpisodeEntry]) -> int | None:
    """The first call that the two do not share; None when neither has one of its own."""
    for index, (one, other) in enumerate(zip_longest(left, right)):
        if one is not other and one != other:
            return index
    return None


def comparison(left: Track, right: Track) -> tuple[str, str, str]:
    """Both rewards in one chart with a sentence above it; then each branch on its own."""
    index = parted_at(left.entries, right.entries)
    if index is None:
        sentence = "They are the same so far."
    else:
        totals = (total_reward(left.entries), total_reward(right.entries))
        sentence = (
            f"They share {index} calls, then part. Total reward: {totals[0]:.4g} against {totals[1]:.4g}."
        )
    chart = lines(
        [(track.name, _running_total(track.entries)) for track in (left, right)],
        label="Total reward",
        x_label="step",
        first_x=1,
        wide=True,
    )
    return f"<p><b>{escape(sentence)}</b></p>{chart}", _column(left), _column(right)


def _running_total(entries: Sequence[EpisodeEntry]) -> list[float]:
    totals: list[float] = []
    for entry in entries:
        if entry.call == "step":
            totals.append((totals[-1] if totals else 0.0) + (entry.reward or 0.0))
    return totals


def _column(track: Track) -> str:
    return f"<h4>{escape(track.name)}</h4>{result_card(track.entries)}{history(track.entries)}"


class CompareTab:
    """Builds the tab inside the Blocks that is open."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits
        with gr.Row():
            self._left = gr.Dropdown([], label="This branch", elem_id="et-left")
            self._right = gr.Dropdown([], label="and this one", elem_id="et-right")
        above = gr.HTML(nothing_yet("Fork an episode on the Play tab; its branches are compared here."))
        with gr.Row(equal_height=False):
            columns = [gr.HTML(elem_id=f"et-compare-{side}", min_width=300) for side in ("left", "right")]
        self._shown = [above, *columns]
        for choice in (self._left, self._right):
            choice.input(self._compare, [self._left, self._right], self._shown, **QUIET)

    def on_select(self, tab: gr.Tab) -> None:
        """Look at the newest two branches whenever the tab is opened."""
        tab.select(self._open, None, [self._left, self._right, *self._shown], **QUIET)

    async def _open(self, request: gr.Request) -> list[Any]:
        names = list(self._visits.of(request.session_hash).branches)
        if len(names) < 2:
            empty = gr.update(choices=names, value=None)
            return [
                empty,
                empty,
                nothing_yet("Fork an episode on the Play tab to have two branches."),
                "",
                "",
            ]
        left, right = names[0], names[-1]
        choices = [gr.update(choices=names, value=left), gr.update(choices=names, value=right)]
        return [*choices, *await self._compare(request, left, right)]

    async def _compare(self, request: gr.Request, left: str, right: str) -> tuple[str, str, str]:
        branches = self._visits.of(request.session_hash).branches
        if left not in branches or right not in branches:
            return nothing_yet("Choose two branches."), "", ""
        return comparison(branches[left].track, branches[right].track)
