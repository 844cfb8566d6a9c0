"""The bodies of the HTTP door's requests and answers."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from envtorch.protocol.arguments import LONGEST_S

__all__ = [
    "HealthResponse",
    "ObservationResponse",
    "ResetRequest",
    "SchemaResponse",
    "StepOptions",
    "StepRequest",
]


RequestName = Annotated[str, Field(max_length=255)]
Timeout = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False, strict=True)]


class ResetRequest(BaseModel):
    """Keywords for the environment's `reset`; those it does not take are dropped, as OpenEnv does."""

    model_config = ConfigDict(extra="allow")

    seed: Annotated[int, Field(ge=0)] | None = None
    episode_id: Annotated[str, Field(max_length=255)] | None = None
    request_id: RequestName | None = None


class StepOptions(BaseModel):
    """Keywords for the environment's `step`, and those of the request itself."""

    model_config = ConfigDict(extra="allow")

    timeout_s: Timeout | None = None
    request_id: RequestName | None = None


class StepRequest(StepOptions):
    """An action, and keywords for the environment's `step`."""

    action: dict[str, Any]


class ObservationResponse(BaseModel):
    """What `/reset` and `/step` answer."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


class SchemaResponse(BaseModel):
    """JSON schemas of what travels."""

    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]
    reset_observation: dict[str, Any]


class HealthResponse(BaseModel):
    """Whether the server can build an environment; if not, why."""

    status: str
    detail: str | None = None
