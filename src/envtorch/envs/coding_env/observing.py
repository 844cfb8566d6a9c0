"""From what an executor answers to what an agent sees."""

from envtorch.envs.coding_env.models import CodeObservation
from envtorch.sandbox import Outcome, Policy, Result

__all__ = ["observe"]


def observe(result: Result, policy: Policy, *, limit_s: float) -> CodeObservation:
    """The observation of one run. Its texts came from the agent's own process: they are cut and cleaned."""
    notes = [result.stderr]
    if result.exception is not None and result.alive:
        notes.append(result.exception.traceback)
    notes.append(_explain(result, policy, limit_s))
    stderr = "\n".join(note.rstrip("\n") for note in notes if note)
    return CodeObservation(
        stdout=_clean(result.stdout, policy.output_bytes),
        stderr=_clean(f"{stderr}\n" if stderr else "", 2 * policy.output_bytes),
        exit_code=_exit_code(result),
        outcome=result.outcome.value,
        value=None if result.value is None else _clean(result.value, policy.output_bytes),
        done=not result.alive,
    )


def _exit_code(result: Result) -> int:
    """What the code left with; code that did not go well never has 0, whatever it said."""
    return result.exit_status or (0 if result.ok else 1)


def _explain(result: Result, policy: Policy, limit_s: float) -> str:
    """One sentence about a limit: what it was, and what is left."""
    limits = {
        Outcome.TIMED_OUT: f"The code ran for longer than {limit_s:g} s and was stopped.",
        Outcome.OUT_OF_MEMORY: _explain_memory(result, policy),
        Outcome.OUT_OF_PROCESSES: f"The code started more than {policy.processes} processes and threads.",
        Outcome.OUT_OF_DISK: f"The code wrote more than {_megabytes(policy.disk_bytes)} MB to disk.",
        Outcome.OUTPUT_TRUNCATED: f"Output is cut after {policy.output_bytes} bytes.",
        Outcome.CRASHED: "The interpreter came to a sudden end.",
    }
    said = limits.get(result.outcome, "")
    if not result.alive:
        why = f" ({result.exception.message})" if result.exception is not None else ""
        return f"{said} Its variables are gone{why}, and the episode is over.".lstrip()
    return f"{said} Its variables are kept." if said else ""


def _explain_memory(result: Result, policy: Policy) -> str:
    """What the limit is, and what was measured: a request for memory may be refused long before that much is
    in use."""
    said = (
        f"The code asked for more memory than it may have: the limit is {_megabytes(policy.memory_bytes)} MB"
    )
    if not result.memory_bytes:
        return f"{said}."
    return f"{said}, and its interpreter had {result.memory_bytes / 2**20:.0f} MB in use at most."


def _megabytes(count: int) -> str:
    return f"{count / 2**20:g}"


def _clean(text: str, limit: int) -> str:
    """Text that every wire can carry: no lone surrogates, no more than `limit` characters."""
    return text[:limit].encode("utf-8", "replace").decode()
