"""The limits of a session on a writable root, and how a command that met one is judged."""

import resource

from .monitor import Excess
from .persistent_shell import ShellAnswer
from .policy import Policy
from .shell_results import CommandOutcome

__all__ = ["outcome_of", "rlimits_for"]


def rlimits_for(policy: Policy, *, memory_is_counted: bool) -> dict[int, int]:
    """Limits of each process. Memory is among them only where no control group counts it."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: policy.open_files,
        resource.RLIMIT_FSIZE: policy.disk_bytes,
    }
    if not memory_is_counted:
        limits[resource.RLIMIT_DATA] = policy.memory_bytes
    return limits


def outcome_of(answer: ShellAnswer, *, killed: bool, refused: bool, excess: Excess | None) -> CommandOutcome:
    """How a command ended. `killed` and `refused`: the control group ended or refused a process meanwhile."""
    report = answer.report
    if report is None:
        return CommandOutcome.RUNNING
    exceeded = excess.resource if excess is not None else ""
    if report.status != 0 and (killed or exceeded == "memory"):
        return CommandOutcome.OUT_OF_MEMORY
    if report.status != 0 and (refused or exceeded == "processes"):
        return CommandOutcome.OUT_OF_PROCESSES
    if answer.timed_out:
        return CommandOutcome.TIMED_OUT
    if report.ended:
        return CommandOutcome.SHELL_ENDED
    return CommandOutcome.OK if report.status == 0 else CommandOutcome.ERROR
