"""Spans around calls, for those who collect them; nothing at all for everybody else."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from envtorch.errors import MissingExtra

__all__ = ["CARRIER", "Span", "no_span", "spans"]

Span = Callable[[str, str], AbstractContextManager[Any]]
"""`span(kind, session_id)` surrounds one call."""

CARRIER: ContextVar[Mapping[str, str]] = ContextVar("trace_carrier")
"""The headers of the request or handshake that a call came with: the caller's trace is in them."""

_NOTHING: AbstractContextManager[Any] = nullcontext()


def no_span(kind: str, session_id: str) -> AbstractContextManager[Any]:
    """What surrounds a call when nobody traces."""
    return _NOTHING


def spans(*, enabled: bool) -> Span:
    """OpenTelemetry's spans, or none. Raises `MissingExtra` when they are wanted and cannot be had."""
    if not enabled:
        return no_span
    try:
        span: Span = import_module("envtorch.server.telemetry.opentelemetry_spans").span
    except ModuleNotFoundError as missing:
        raise MissingExtra("ENVTORCH_TRACING needs an extra: pip install 'envtorch[otel]'") from missing
    return span
