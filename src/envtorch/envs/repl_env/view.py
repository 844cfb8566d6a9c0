"""A tree of agents, drawn in the terminal while it grows."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from envtorch.envs.repl_env.events import Asked, Began, Ended, Event, Forked, Ran

__all__ = ["TreeView"]

_WIDTH = 60


@dataclass(slots=True)
class _Line:
    """What is shown of one agent."""

    task: str = ""
    turns: int = 0
    queries: int = 0
    blocks: int = 0
    failures: int = 0
    doing: str = "waiting"
    answer: str | None = None
    ended: bool = False
    how: str = ""
    children: list[str] = field(default_factory=list)


class TreeView:
    """An observer of events that keeps a live tree on the screen."""

    def __init__(self, console: Console | None = None) -> None:
        self._lines: dict[str, _Line] = {}
        self._live = Live(console=console, auto_refresh=False, transient=False, get_renderable=self.render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if not self._live.console.is_terminal:
            self._live.console.line()  # where nothing is redrawn, the last drawing does not end its line

    def __call__(self, event: Event) -> None:
        line = self._lines.setdefault(event.node, _Line())
        match event:
            case Began():
                line.task, line.doing = event.task, "thinking"
            case Asked(turn=True):
                line.turns += 1
                line.doing = "running code"
            case Asked():
                line.queries += 1
                line.failures += event.answer is None
            case Ran():
                line.blocks += 1
                line.failures += not event.success
                line.doing = "thinking"
            case Forked():
                line.children.extend(event.children)
                line.doing = f"waiting for {len(event.children)} children"
                for child in event.children:
                    how = f"forked in {event.seconds * 1000:.0f} ms" if event.how == "fork" else "fresh"
                    self._lines[child] = _Line(how=how)
            case Ended():
                line.answer, line.ended, line.doing = event.answer, True, event.reason
        self._live.refresh()

    def render(self) -> Tree:
        """The tree as it is now."""
        tree = Tree(self._text("0"), guide_style="dim")
        self._grow(tree, "0")
        return tree

    def _grow(self, branch: Tree, name: str) -> None:
        for child in self._lines.get(name, _Line()).children:
            self._grow(branch.add(self._text(child)), child)

    def _text(self, name: str) -> Text:
        line = self._lines.get(name, _Line())
        mark, style = ("●", "yellow")
        if line.ended:
            mark, style = ("✔", "green") if line.answer is not None else ("✘", "red")
        said = f"= {_short(line.answer)}" if line.answer is not None else _short(line.doing)
        counts = [f"{line.turns} turns", f"{line.blocks} blocks"]
        counts += [f"{line.queries} queries"] if line.queries else []
        counts += [f"{line.failures} failures"] if line.failures else []
        counts += [line.how] if line.how else []
        text = Text.assemble(
            (f"{mark} {name} {said}", style),
            (f"  {', '.join(counts)}", "dim"),
            f"  {_short(line.task)}",
        )
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _WIDTH else f"{flat[: _WIDTH - 1]}…"
