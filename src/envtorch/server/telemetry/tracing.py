"""Spans around calls, for those who collect them; nothing at all for everybody else."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib import import_module

from envtorch.extras import missing_extra
from envtorch.protocol.ledger import CallOutcome

__all__ = ["CARRIER", "Span", "no_span", "spans"]

Span = Callable[[str, str], Callable[[CallOutcome], None]]
"""`span(operation, session_id)` begins a span; what it returns ends it, given what came of the call."""

CARRIER: ContextVar[Mapping[str, str]] = ContextVar("trace_carrier")
"""The headers of the request or handshake that a call came with: the caller's trace is in them."""


def no_span(operation: str, session_id: str) -> Callable[[CallOutcome], None]:
    """What surrounds a call when nobody traces."""
    return lambda outcome: None


def spans(*, enabled: bool) -> Span:
    """OpenTelemetry's spans, or none. Raises `MissingExtra` when they are wanted and cannot be had."""
    if not enabled:
        return no_span
    try:
        span: Span = import_module("envtorch.server.telemetry.opentelemetry_spans").span
    except ModuleNotFoundError as missing:
        raise missing_extra("otel", "ENVTORCH_TRACING needs the opentelemetry-api package") from missing
    return span
