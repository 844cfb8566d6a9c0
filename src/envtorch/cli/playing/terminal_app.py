"""The terminal's screen: history, observation, form; branches as tabs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Footer, Header, Input, Label, Static, Tab, Tabs

from envtorch.cli.playing.branches import Game, Turn
from envtorch.cli.playing.form import action_of, fields_of
from envtorch.cli.playing.terminal_widgets import ActionForm
from envtorch.cli.playing.views import row_of, show_turn
from envtorch.errors import EnvTorchError, InvalidAction

__all__ = ["Pages", "PlayApp"]


class Pages(App[None]):
    """What a game and a recording have in common: tabs, a history, and what was seen at a line of it."""

    CSS = """
    #middle { height: 1fr; }
    #history { width: 46%; height: 100%; border: round $primary; overflow-x: hidden; }
    #seen { width: 1fr; border: round $primary; padding: 0 1; }
    #status { height: auto; padding: 0 2; color: $text-muted; }
    #status.wrong { color: $error; text-style: bold; }
    #seed { width: 24; }
    #begin { height: auto; padding: 0 2; }
    #begin Label { width: 20; padding: 0 1 0 0; color: $text-muted; text-align: right; }
    """
    ENABLE_COMMAND_PALETTE = False
    TITLE = "envtorch play"

    def compose(self) -> ComposeResult:
        yield Header()
        yield Tabs(id="tabs")
        with Horizontal(id="middle"):
            yield DataTable(id="history", cursor_type="row", zebra_stripes=True)
            with VerticalScroll(id="seen"):
                yield Static(id="turn")
        yield from self.compose_below()
        yield Label("", id="status")
        yield Footer()

    def compose_below(self) -> ComposeResult:
        """What stands between the history and the status line."""
        yield from ()

    @property
    def turns(self) -> Sequence[Turn]:
        """The lines of the history that is shown."""
        return ()

    def draw_frame(self) -> None:
        """Headings. Not `on_mount`: textual would call that of every class in turn."""
        table = self.query_one("#history", DataTable)
        table.add_columns("step", "reward", "", "given")
        table.border_title = "history"
        self.query_one("#seen").border_title = "observation"

    def show_history(self, *, at: int | None = None) -> None:
        """Draw the history anew, and stand at a line of it: the last one, unless told."""
        table = self.query_one("#history", DataTable)
        table.clear()
        for turn in self.turns:
            table.add_row(*row_of(turn))
        if self.turns:
            table.move_cursor(row=len(self.turns) - 1 if at is None else at)
        self.show_line(len(self.turns) - 1 if at is None else at)

    def show_line(self, index: int) -> None:
        turns = self.turns
        seen = self.query_one("#turn", Static)
        if not 0 <= index < len(turns):
            seen.update("")
            return
        seen.update(show_turn(turns[index], turns[index - 1] if index else None))
        self.query_one("#seen").border_title = f"observation {turns[index].step}"

    def action_move(self, by: int) -> None:
        table = self.query_one("#history", DataTable)
        table.move_cursor(row=table.cursor_row + by)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self.show_line(event.cursor_row)

    def say(self, text: str, *, wrong: bool = False) -> None:
        status = self.query_one("#status", Label)
        status.set_class(wrong, "wrong")
        status.update(text)


class PlayApp(Pages):
    """A game on a live environment."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f2", "reset", "Reset", priority=True),
        Binding("f5", "step", "Step", priority=True),
        Binding("f6", "fork", "Fork", priority=True),
        Binding("f7", "go_back", "Back to the line", priority=True),
        Binding("f8", "next_branch", "Next branch", priority=True),
        Binding("pageup", "move(-1)", "Line up", priority=True),
        Binding("pagedown", "move(1)", "Line down", priority=True),
        Binding("ctrl+q", "quit", "Quit", priority=True),
    ]

    def __init__(self, game: Game, *, name: str, schema: dict[str, Any], seed: int | None) -> None:
        super().__init__()
        self.game = game
        self.sub_title = name
        self._fields = fields_of(schema)
        self._seed = seed
        self._turn = asyncio.Lock()

    def compose_below(self) -> ComposeResult:
        with Horizontal(id="begin"):
            yield Label("seed for reset")
            yield Input(
                "" if self._seed is None else str(self._seed), placeholder="none", id="seed", compact=True
            )
        yield ActionForm(self._fields)

    @property
    def turns(self) -> Sequence[Turn]:
        return self.game.branch.turns if self.game.branches else ()

    async def on_mount(self) -> None:
        self.draw_frame()
        self.query_one("#form").border_title = "action"
        self.attempt(self._begin)

    async def _begin(self) -> None:
        await self.game.open()
        await self.query_one("#tabs", Tabs).add_tab(Tab("main", id="branch-0"))
        self.query_one(ActionForm).focus_first()
        await self._reset()

    async def on_unmount(self) -> None:
        await self.game.close()

    # What a person does.

    @work
    async def attempt(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do something with the session, in its turn; what goes wrong is told in the status line."""
        try:
            async with self._turn:
                await act()
        except InvalidAction as error:
            self.say(_why(error), wrong=True)
        except EnvTorchError as error:
            self.say(f"{type(error).__name__}: {error}", wrong=True)

    def action_reset(self) -> None:
        self.attempt(self._reset)

    def action_step(self) -> None:
        self.call_after_refresh(self.attempt, self._step)  # what was typed before is in the form by then

    def action_fork(self) -> None:
        self.attempt(self._fork)

    def action_go_back(self) -> None:
        self.attempt(self._back)

    def action_next_branch(self) -> None:
        self.query_one("#tabs", Tabs).action_next_tab()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.attempt(self._reset if event.input.id == "seed" else self._step)

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        index = int(str(event.tab.id).removeprefix("branch-"))
        if index < len(self.game.branches):
            self.game.current = index
            self.show_history()
            self._tell()

    async def _reset(self) -> None:
        text = self.query_one("#seed", Input).value.strip()
        try:
            options = {"seed": int(text)} if text else {}
        except ValueError:
            raise InvalidAction(f"the seed is a whole number, not {text!r}") from None
        await self.game.reset(options)
        self.show_history()
        self._tell()

    async def _step(self) -> None:
        form = self.query_one(ActionForm)
        await self.game.step(action_of(self._fields, form.filled))
        self.show_history()
        self._tell()
        if isinstance(self.focused, Input):
            self.focused.action_select_all()  # what is typed next takes its place

    async def _fork(self) -> None:
        branch = await self.game.fork()
        tabs = self.query_one("#tabs", Tabs)
        tab = Tab(branch.name, id=f"branch-{self.game.current}")
        await tabs.add_tab(tab)
        tabs.active = str(tab.id)  # which shows its history, so far the other branch's

    async def _back(self) -> None:
        step = self.query_one("#history", DataTable).cursor_row
        how = await self.game.go_back(step)
        self.show_history()
        self.say(f"back at step {step}: {how}")

    def _tell(self) -> None:
        branch = self.game.branch
        over = "   the episode is over: F2 begins another" if branch.is_over else ""
        steps = max(len(branch.turns) - 1, 0)
        self.say(f"{branch.name}   {steps} step{'' if steps == 1 else 's'}   return {branch.total:g}{over}")


def _why(error: InvalidAction) -> str:
    """What is wrong with an action, field by field."""
    if not error.errors:
        return error.message
    told = (f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg')}" for each in error.errors[:4])
    return "; ".join(told)
