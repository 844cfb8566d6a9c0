"""What authors test with: `check_provider` and the probe it starts. Shipped, so that all use the same."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envtorch.testing.provider import (
        PROBE_APP,
        PROBE_COMMAND,
        CheckResult,
        ProviderCheck,
        ProviderSubject,
        Skipped,
        check_provider,
    )
    from envtorch.testing.provider_checks import PROVIDER_CHECKS

__all__ = [
    "PROBE_APP",
    "PROBE_COMMAND",
    "PROVIDER_CHECKS",
    "CheckResult",
    "ProviderCheck",
    "ProviderSubject",
    "Skipped",
    "check_provider",
]

_ELSEWHERE = {"PROVIDER_CHECKS": "envtorch.testing.provider_checks"}


def __getattr__(name: str) -> Any:
    # The probe is a module of this package and starts many times: it must not wait for the rest.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "envtorch.testing.provider")), name)
