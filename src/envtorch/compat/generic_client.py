"""OpenEnv's client without classes: dictionaries in, dictionaries out."""

from typing import Any

from pydantic import BaseModel

from envtorch.compat.env_client import EnvClient
from envtorch.types import StepResult

__all__ = ["GenericAction", "GenericEnvClient"]


class GenericAction(dict[str, Any]):
    """An action made of keywords: `GenericAction(code="print(1)")`."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)

    def __repr__(self) -> str:
        return f"GenericAction({', '.join(f'{name}={value!r}' for name, value in self.items())})"


class GenericEnvClient(EnvClient[Any, dict[str, Any], dict[str, Any]]):
    """A client for any environment."""

    def _step_payload(self, action: Any) -> dict[str, Any]:
        if isinstance(action, dict):
            return action
        if isinstance(action, BaseModel):
            return action.model_dump()
        try:
            return dict(vars(action))
        except TypeError:
            raise TypeError(
                f"an action is a dictionary, a pydantic model or an object with attributes, and not "
                f"{type(action).__name__}"
            ) from None

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[dict[str, Any]]:
        return StepResult(
            observation=payload.get("observation", {}),
            reward=payload.get("reward"),
            done=payload.get("done", False),
            metadata=payload.get("metadata"),
        )

    def _parse_state(self, payload: dict[str, Any]) -> dict[str, Any]:
        return payload
