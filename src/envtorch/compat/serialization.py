"""OpenEnv's helpers between dictionaries and values."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel

from envtorch.protocol.encoding import encode_value
from envtorch.tools import CallToolAction, ListToolsAction
from envtorch.types import Action

__all__ = ["deserialize_action", "deserialize_action_with_preprocessing", "serialize_observation"]

_TOOL_ACTIONS: dict[str, type[Action]] = {"list_tools": ListToolsAction, "call_tool": CallToolAction}


def deserialize_action(action_data: dict[str, Any], action_cls: type[Any]) -> Any:
    """The action in a dictionary.

    A tool action is understood where the environment takes any action, or tool actions.
    """
    if action_cls in (Action, CallToolAction, ListToolsAction):
        tool_action = _TOOL_ACTIONS.get(str(action_data.get("type")))
        if tool_action is not None:
            return tool_action.model_validate(action_data)
    return action_cls.model_validate(action_data)


def deserialize_action_with_preprocessing(action_data: dict[str, Any], action_cls: type[Any]) -> Any:
    """`deserialize_action` for what a web form sends: everything a string."""
    return deserialize_action({key: _from_form(key, value) for key, value in action_data.items()}, action_cls)


def _from_form(key: str, value: Any) -> Any:
    if key in ("arguments", "metadata") and isinstance(value, str):
        try:
            return json.loads(value) if value.strip() else {}
        except ValueError:
            return {}
    if key == "action_id" and isinstance(value, str):
        return int(value)
    if key == "tokens" and find_spec("torch") is not None:
        tokens = json.loads(value) if isinstance(value, str) else value
        if isinstance(tokens, list):
            import torch

            return torch.tensor(tokens, dtype=torch.long)
    return value


def serialize_observation(observation: Any) -> dict[str, Any]:
    """An observation as OpenEnv's envelope: reward and done beside it, metadata also on its own."""
    if isinstance(observation, BaseModel):
        inner = observation.model_dump(exclude={"reward", "done"})
    else:
        inner = {
            k: v for k, v in json.loads(encode_value(observation)).items() if k not in ("reward", "done")
        }
    read: Any = observation.get if isinstance(observation, Mapping) else _reader(observation)
    envelope = {"observation": inner, "reward": read("reward", None), "done": read("done", False)}
    metadata = read("metadata", None)
    return envelope | ({"metadata": metadata} if metadata else {})


def _reader(value: object) -> Any:
    return lambda name, default: getattr(value, name, default)
