"""An observation as a language model reads it."""

import dataclasses
import json
from typing import Any

from pydantic import BaseModel

from envtorch.tools import CallToolObservation, CallToolResult

__all__ = ["BESIDE_TEXT", "observation_text"]

BESIDE_TEXT = {"done", "reward", "metadata", "terminated", "truncated"}
"""What an observation has for the trainer, not for the policy."""


def observation_text(observation: Any) -> str:
    """An observation as a policy reads it: a single text as it is, several fields under their names."""
    if isinstance(observation, CallToolObservation):
        return observation.error.message if observation.error is not None else _answer(observation.result)
    fields = {
        name: value for name, value in _values_of(observation).items() if value not in (None, "", [], {})
    }
    if not fields:
        return ""
    if len(fields) == 1 and isinstance(only := next(iter(fields.values())), str):
        return only
    return "\n".join(f"{name}: {_text_of(value)}" for name, value in fields.items())


_RESULT_FIELDS = {field.name for field in dataclasses.fields(CallToolResult)}


def _answer(result: Any) -> str:
    """What a tool answered: the text in a result of MCP's form, else its data; any other value as JSON."""
    told = vars(result) if isinstance(result, CallToolResult) else result
    if isinstance(told, dict) and told.keys() >= _RESULT_FIELDS and isinstance(told["content"], list):
        found = (
            part.get("text") if isinstance(part, dict) else getattr(part, "text", None)
            for part in told["content"]
        )
        texts = [text for text in found if isinstance(text, str)]
        if texts:
            return "\n".join(texts)
        told = told["data"]
    return told if isinstance(told, str) else json.dumps(told, default=str)


def _values_of(observation: Any) -> dict[str, Any]:
    if isinstance(observation, BaseModel):
        return observation.model_dump(mode="json", exclude=BESIDE_TEXT)
    if dataclasses.is_dataclass(observation) and not isinstance(observation, type):
        observation = dataclasses.asdict(observation)
    if isinstance(observation, dict):
        return {name: value for name, value in observation.items() if name not in BESIDE_TEXT}
    return {"observation": observation if isinstance(observation, str) else str(observation)}


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return f"\n{value}" if "\n" in value else value
    return json.dumps(value, default=str)
