"""The same episode as Python that a person can copy and run."""

from collections.abc import Mapping, Sequence
from typing import Any

from envtorch.web.episodes import Entry
from envtorch.web.schema import MASK

__all__ = ["same_in_python"]

_MOST_CALLS = 30


def same_in_python(entries: Sequence[Entry], base_url: str) -> str:
    """A script that makes the calls of an episode, by the client that needs no class of the environment."""
    made = [entry for entry in entries if entry.error is None]
    calls = [_call(entry) for entry in made[-_MOST_CALLS:]] or ["result = env.reset()"]
    if len(made) > _MOST_CALLS:
        calls.insert(0, f"# ... {len(made) - _MOST_CALLS} calls before these")
    body = "\n".join(f"    {line}" for line in calls)
    return (
        "from envtorch import EnvClient\n\n"
        f'with EnvClient("{base_url}") as env:\n{body}\n    print(result.observation, result.reward)'
    )


def _call(entry: Entry) -> str:
    if entry.call == "step":
        return f"result = env.step({_literal(entry.sent)})"
    options = ", ".join(
        f"{name}={_literal(value)}" for name, value in entry.sent.items() if name.isidentifier()
    )
    return f"result = env.reset({options})"


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return '"..."' if value == MASK else repr(value)
