"""What we test ourselves with, for authors: `check_env` says whether an environment keeps its promises."""

from envtorch.testing.check_env import check_env
from envtorch.testing.report import Finding, Report, Severity

__all__ = ["Finding", "Report", "Severity", "check_env"]
