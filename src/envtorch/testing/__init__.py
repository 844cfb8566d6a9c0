"""What authors test with: `check_env` and `check_provider`. Shipped, so that all use the same."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envtorch.testing.environment_checks import check_env
    from envtorch.testing.players import check_replay
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
    from envtorch.testing.report import Finding, Report, Severity

__all__ = [
    "PROBE_APP",
    "PROBE_COMMAND",
    "PROVIDER_CHECKS",
    "CheckResult",
    "Finding",
    "ProviderCheck",
    "ProviderSubject",
    "Report",
    "Severity",
    "Skipped",
    "check_env",
    "check_provider",
    "check_replay",
]

_HOME = {
    "PROVIDER_CHECKS": "provider_checks",
    "check_env": "environment_checks",
    "check_replay": "players",
    **dict.fromkeys(("Finding", "Report", "Severity"), "report"),
}


def __getattr__(name: str) -> Any:
    # The probe is a module of this package and starts many times: it must not wait for the rest.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"envtorch.testing.{_HOME.get(name, 'provider')}"), name)
