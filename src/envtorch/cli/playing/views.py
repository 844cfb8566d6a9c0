"""How moments look: observations as a table, histories as rows."""

import json
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from envtorch.cli.playing.branches import Turn
from envtorch.recording import Moment

__all__ = ["row_of", "show_turn", "turn_of"]

LONGEST = 200


def turn_of(moment: Moment) -> Turn:
    """A moment of a recording, as a turn of a game."""
    error = None if moment.error is None else f"{moment.error.code}: {moment.error.message}"
    given = moment.given if isinstance(moment.given, dict) else {"action": moment.given}
    return Turn(
        moment.step, given, moment.observation, moment.reward, moment.done, error, seconds=moment.seconds
    )


def row_of(turn: Turn) -> tuple[str, str, str, str]:
    """Step, reward, standing and what was given: a line of the history."""
    given = ", ".join(f"{name}={_short(value)}" for name, value in turn.given.items() if name != "metadata")
    what = given if turn.step else f"reset {given}".rstrip()
    standing = "error" if turn.error else "done" if turn.done else ""
    reward = "" if turn.reward is None else f"{turn.reward:.4g}"
    return str(turn.step), reward, standing, _cut(what)


def show_turn(turn: Turn, before: Turn | None) -> RenderableType:
    """What was seen at a turn; what changed since the one before is marked."""
    parts: list[RenderableType] = []
    if turn.error is not None:
        parts.append(Text(turn.error, style="bold red"))
    else:
        parts.append(_fields(turn.observation, before.observation if before is not None else None))
    line = Text()
    line.append("\nreward ", style="dim")
    line.append("none" if turn.reward is None else f"{turn.reward:g}", style="bold")
    if turn.done:
        line.append("   the episode is over", style="bold green")
    if turn.seconds is not None:
        line.append(f"   {turn.seconds * 1000:.1f} ms", style="dim")
    parts.append(line)
    return Group(*parts)


def _fields(observation: Any, before: Any) -> RenderableType:
    if not isinstance(observation, dict):
        return Text(_pretty(observation))
    table = Table.grid(padding=(0, 1))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in observation.items():
        if name == "metadata" and not value:
            continue
        is_new = not isinstance(before, dict) or before.get(name) != value
        table.add_row(name, Text(_pretty(value), style="bold" if is_new else ""))
    return table


def _pretty(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(value, default=str)
    return text if len(text) < 100 else json.dumps(value, indent=2, default=str)


def _short(value: Any) -> str:
    return value.replace("\n", "⏎") if isinstance(value, str) else json.dumps(value, default=str)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
