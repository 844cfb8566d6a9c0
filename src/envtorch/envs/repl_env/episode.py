"""The rules of an episode: what it may cost, when it ends, with which reward and which words."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from envtorch.envs.repl_env.models import CodeBlockResult
from envtorch.errors import InvalidAction

__all__ = ["Rules", "greeting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an episode is played by."""

    max_output_length: int = 8192
    context_preview_length: int = 500
    reward_on_success: float = 1.0
    reward_on_iteration: float = 0.0
    reward_on_failure: float = -0.1
    reward_on_error: float = -0.05

    def with_changes(self, changes: Mapping[str, Any] | None) -> Self:
        """These rules with some changed, as a client may ask for. Raises `InvalidAction`."""
        known = {field.name: field.type for field in fields(self)}
        values: dict[str, Any] = {name: getattr(self, name) for name in known}
        for name, value in (changes or {}).items():
            if name not in known:
                raise InvalidAction(f"there is no rule {name!r}; there are {', '.join(sorted(known))}")
            kinds = (int,) if name.endswith("_length") else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or (kinds == (int,) and value < 0):
                raise InvalidAction(f"{name} must be a number that makes sense, not {value!r}")
            values[name] = value
        return type(self)(**values)


def greeting(context: str, task_prompt: str) -> CodeBlockResult:
    """What the first observation says."""
    lines = ["REPL environment initialized."]
    if context:
        lines.append(f"Context loaded ({len(context)} chars). Use 'context' variable to access it.")
    if task_prompt:
        lines.append(f"Task: {task_prompt}")
    lines.append("Use answer['content'] to store your answer, and set answer['ready'] = True when done.")
    return CodeBlockResult(stdout="\n".join(lines))
