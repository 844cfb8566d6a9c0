"""`GetEndpointConfig`: a GET route described as a value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

__all__ = ["GetEndpointConfig", "register_get_endpoints"]


@dataclass
class GetEndpointConfig:
    """One GET route."""

    path: str
    handler: Callable[[], BaseModel | dict[str, Any]]
    response_model: type[BaseModel] | type[dict[str, Any]]
    tag: str
    summary: str
    description: str


def register_get_endpoints(app: FastAPI, configs: Sequence[GetEndpointConfig]) -> None:
    """Add the routes to an application."""
    for config in configs:
        app.add_api_route(
            config.path,
            config.handler,
            response_model=config.response_model,
            tags=[config.tag],
            summary=config.summary,
            description=config.description,
        )
