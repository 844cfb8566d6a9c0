"""Fields of a form as Gradio components, and what was filled into them."""

import json
from collections.abc import Sequence
from typing import Any

import gradio as gr

from envtorch.web.schema import MISSING, Field, Kind, assemble, leaves

__all__ = ["Form"]

_FEW = 5


class Form:
    """The components of some fields, made where this is called. Of many, the optional ones are folded."""

    def __init__(self, fields: tuple[Field, ...], *, fold: str = "More options") -> None:
        self._fields = fields
        self._leaves: list[Field] = []
        self.inputs: list[Any] = []
        needed = tuple(field for field in fields if field.required or len(fields) <= _FEW)
        self._add(needed)
        optional = tuple(field for field in fields if field not in needed)
        if any(True for _ in leaves(optional)):
            with gr.Accordion(fold, open=False):
                self._add(optional)

    def _add(self, fields: tuple[Field, ...]) -> None:
        for field in fields:
            if field.kind is Kind.OBJECT:
                with gr.Group():
                    gr.Markdown(f"**{field.label}** {field.help}", padding=True)
                    self._add(field.children)
            elif field.kind is not Kind.FIXED:
                self._leaves.append(field)
                self.inputs.append(_component(field))

    def values(self, given: Sequence[Any]) -> dict[str, Any]:
        """What was filled in, in the order of `inputs`, as a JSON object. Raises `InvalidAction`."""
        paths = (field.path for field in self._leaves)
        return assemble(self._fields, dict(zip(paths, given, strict=True)))


def _component(field: Field) -> Any:
    default = None if field.default is MISSING else field.default
    common: dict[str, Any] = {"label": field.label + (" *" if field.required else "")}
    classes = f"et-field-{'-'.join(field.path)}"
    if field.kind is Kind.CODE:
        return gr.Code(
            default or "", language="python", lines=8, interactive=True, elem_classes=classes, **common
        )
    if field.kind is Kind.JSON:
        value = "" if default in (None, MISSING) else json.dumps(default, indent=1)
        label = f"{common['label']} (JSON)"
        return gr.Code(value, language="json", lines=3, interactive=True, elem_classes=classes, label=label)
    common |= {"info": _hint(field) or None, "elem_classes": classes}
    match field.kind:
        case Kind.BOOLEAN:
            return gr.Checkbox(bool(default), **common)
        case Kind.INTEGER | Kind.NUMBER:
            precision = 0 if field.kind is Kind.INTEGER else None
            return gr.Number(default, precision=precision, **common)
        case Kind.CHOICE if len(field.choices) <= _FEW and field.required:
            return gr.Radio(_pairs(field.choices), value=default, **common)
        case Kind.CHOICE:
            return gr.Dropdown(_pairs(field.choices), value=default, **common)
        case Kind.CHOICES:
            return gr.Dropdown(_pairs(field.choices), value=default or [], multiselect=True, **common)
        case Kind.SECRET:
            return gr.Textbox("", type="password", **common)
        case Kind.LONG_TEXT:
            return gr.Textbox(default or "", lines=3, max_lines=12, **common)
    return gr.Textbox(default or "", **common)


def _hint(field: Field) -> str:
    """What to say under a field: what it is for, and its range. Whether it fits, the environment says."""
    low, high = field.minimum, field.maximum
    if low is not None and high is not None:
        bounds = f"from {low:g} to {high:g}"
    elif low is not None or high is not None:
        bounds = f"at least {low:g}" if low is not None else f"at most {high:g}"
    else:
        bounds = ""
    return ", ".join(filter(None, (field.help, bounds)))


def _pairs(choices: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(choice if isinstance(choice, str) else json.dumps(choice), choice) for choice in choices]
