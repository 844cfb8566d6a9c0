"""A live, forkable, kernel-isolated Python interpreter."""

from .policy import Policy
from .report import Report, report
from .results import Completed, Failure, FileInfo, Outcome, Result, Variable, Verdict
from .sandbox import Sandbox

__all__ = [
    "Completed",
    "Failure",
    "FileInfo",
    "Outcome",
    "Policy",
    "Report",
    "Result",
    "Sandbox",
    "Variable",
    "Verdict",
    "report",
]
