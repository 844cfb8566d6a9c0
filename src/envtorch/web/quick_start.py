"""A few lines of Python that reach an environment: what a builder is given as `quick_start_md`."""

from importlib.util import find_spec
from typing import Any

from envtorch.settings import Settings
from envtorch.tools import CallToolAction
from envtorch.types import EnvironmentMetadata

__all__ = ["quick_start"]

_EXAMPLES: dict[Any, str] = {bool: "False", int: "0", float: "0.0", str: '"..."', list: "[]", dict: "{}"}


def quick_start(metadata: EnvironmentMetadata | None, action_cls: type, observation_cls: type) -> str:
    """Markdown that shows how to connect, with the environment's own client where its package is known."""
    address = Settings.from_environ().public_url or "http://127.0.0.1:8000"
    name = (metadata.name if metadata else "environment").replace(" ", "_").lower()
    prefix = action_cls.__name__.removesuffix("Action") or "Environment"
    if find_spec(name.partition(".")[0]) is not None and action_cls is not CallToolAction:
        lines = [f"from {name} import {action_cls.__name__}, {prefix}Env"]
        client, action = f"{prefix}Env", f"{action_cls.__name__}({_arguments(action_cls)})"
    else:
        lines = ["from envtorch import EnvClient"]
        client, action = "EnvClient", f"{{{_items(action_cls)}}}"
    lines += [
        "",
        f'with {client}("{address}") as env:',
        "    result = env.reset()",
        f"    result = env.step({action})",
        "    print(result.observation, result.reward)",
    ]
    return "\n".join(["### Connect to this environment", "", "```python", *lines, "```"])


def _required(action_cls: type) -> list[tuple[str, str]]:
    fields = getattr(action_cls, "model_fields", {})
    return [
        (name, _EXAMPLES.get(getattr(field.annotation, "__origin__", field.annotation), "..."))
        for name, field in fields.items()
        if field.is_required() and name != "metadata"
    ]


def _arguments(action_cls: type) -> str:
    return ", ".join(f"{name}={value}" for name, value in _required(action_cls))


def _items(action_cls: type) -> str:
    return ", ".join(f'"{name}": {value}' for name, value in _required(action_cls))
