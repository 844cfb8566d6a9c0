"""The same episode as Python that a person can copy and run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envtorch.web.episodes import EpisodeEntry
from envtorch.web.schema import MASK

__all__ = ["GENERIC", "TOOLS", "ClientNames", "same_in_python"]

_MOST_CALLS = 30


@dataclass(frozen=True, slots=True)
class ClientNames:
    """How a program imports the client of an environment, and the class of its actions."""

    imports: tuple[str, ...]
    client: str
    action: str | None
    """None where actions are plain dictionaries."""


GENERIC = ClientNames(("from envtorch import EnvClient",), "EnvClient", None)
TOOLS = ClientNames(
    ("from envtorch import MCPToolClient", "from envtorch.tools import CallToolAction"),
    "MCPToolClient",
    "CallToolAction",
)


def same_in_python(entries: Sequence[EpisodeEntry], base_url: str, names: ClientNames = GENERIC) -> str:
    """A script that makes the calls of an episode, with the environment's own client where it has one."""
    made = [entry for entry in entries if entry.error is None]
    calls = [_call(entry, names) for entry in made[-_MOST_CALLS:]] or ["result = env.reset()"]
    if len(made) > _MOST_CALLS:
        calls.insert(0, f"# ... {len(made) - _MOST_CALLS} calls before these")
    body = "\n".join(f"    {line}" for line in calls)
    imports = "\n".join(names.imports)
    opened = f'with {names.client}("{base_url}") as env:'
    return f"{imports}\n\n{opened}\n{body}\n    print(result.observation, result.reward)"


def _call(entry: EpisodeEntry, names: ClientNames) -> str:
    if entry.call != "step":
        return f"result = env.reset({_keywords(entry.sent)})"
    sent = {name: value for name, value in entry.sent.items() if names is not TOOLS or name != "type"}
    if names.action is None or not all(name.isidentifier() for name in sent):
        return f"result = env.step({_literal(entry.sent)})"
    return f"result = env.step({names.action}({_keywords(sent)}))"


def _keywords(sent: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_literal(value)}" for name, value in sent.items() if name.isidentifier())


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return '"..."' if value == MASK else repr(value)
