"""A live, forkable, kernel-isolated Python interpreter.

with Sandbox(Policy(memory_bytes=256 * 2**20)) as sandbox:
    sandbox.run("x = 40")
    assert sandbox.run("x + 2").json() == 42
"""

from .async_sandbox import AsyncSandbox
from .executor import Executor
from .policy import PROTECTIONS, Policy
from .pool import Pool
from .protections import Report, report
from .results import Completed, Failure, FileInfo, Outcome, Result, Variable, Verdict
from .sandbox import Sandbox
from .sharing import SharedText
from .shell_results import CommandOutcome, CommandResult, FoundFile, FoundLine, Listing
from .submission import AsyncSubmission, Submission
from .workspace import Workspace
from .zygotes import shutdown

__all__ = [
    "PROTECTIONS",
    "AsyncSandbox",
    "AsyncSubmission",
    "CommandOutcome",
    "CommandResult",
    "Completed",
    "Executor",
    "Failure",
    "FileInfo",
    "FoundFile",
    "FoundLine",
    "Listing",
    "Outcome",
    "Policy",
    "Pool",
    "Report",
    "Result",
    "Sandbox",
    "SharedText",
    "Submission",
    "Variable",
    "Verdict",
    "Workspace",
    "report",
    "shutdown",
]
