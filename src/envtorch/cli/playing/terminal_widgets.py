"""The form as widgets: one row per field, each of the kind that suits it."""

from collections.abc import Sequence
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.widget import Widget
from textual.widgets import Checkbox, Input, Label, Select, TextArea

from envtorch.cli.playing.form import FormField, FormFieldKind

__all__ = ["ActionForm"]


class ActionForm(VerticalScroll):
    """An action to fill in."""

    DEFAULT_CSS = """
    ActionForm { height: auto; max-height: 14; padding: 0 1; border: round $primary; }
    ActionForm Horizontal { height: auto; }
    ActionForm Label { width: 20; padding: 0 1 0 0; color: $text-muted; text-align: right; }
    ActionForm .filled { width: 1fr; }
    ActionForm TextArea { height: 6; }
    """

    def __init__(self, fields: Sequence[FormField]) -> None:
        super().__init__(id="form", can_focus=False)
        self.fields = fields
        self._widgets = {field.label: _widget(field) for field in fields}
        self._labels = {field.label: Label(_named(field)) for field in fields}

    def compose(self) -> ComposeResult:
        if not self.fields:
            yield Label("an action without fields")
        for field in self.fields:
            with Horizontal():
                yield self._labels[field.label]
                yield self._widgets[field.label]

    @property
    def filled(self) -> dict[str, Any]:
        """What stands in the form, by the fields' labels."""
        return {label: _value(widget) for label, widget in self._widgets.items()}

    def on_descendant_focus(self) -> None:
        self._mark()

    def on_descendant_blur(self) -> None:
        self._mark()

    def _mark(self) -> None:
        """Show where the next key goes."""
        for field in self.fields:
            marker = "▸ " if self._widgets[field.label].has_focus else ""
            self._labels[field.label].update(f"{marker}{_named(field)}")

    def focus_first(self) -> None:
        for widget in self._widgets.values():
            widget.focus()
            return


def _named(field: FormField) -> str:
    return f"{field.label}{' *' if field.required else ''}"


def _widget(field: FormField) -> Widget:
    match field.kind:
        case FormFieldKind.CHOICE:
            options = [(str(choice), choice) for choice in field.choices]
            chosen = field.default if field.default in field.choices else field.choices[0]
            return Select(
                options, value=chosen, allow_blank=not field.required, compact=True, classes="filled"
            )
        case FormFieldKind.FLAG:
            return Checkbox(field.help, value=bool(field.default), compact=True, classes="filled")
        case FormFieldKind.LONG_TEXT:
            return TextArea(str(field.default or ""), classes="filled", tab_behavior="indent", compact=True)
    start = "" if field.default in (None, "") or field.kind is FormFieldKind.JSON else str(field.default)
    return Input(
        start,
        placeholder=field.hint,
        password=field.kind is FormFieldKind.SECRET,
        compact=True,
        classes="filled",
    )


def _value(widget: Widget) -> Any:
    match widget:
        case Select():
            return None if widget.is_blank() else widget.value
        case Checkbox():
            return widget.value
        case TextArea():
            return widget.text
        case Input():
            return widget.value
    return None
