"""How processes are born here: let go to the keeper, and gone when it goes."""

import ctypes
import os
import signal

__all__ = ["become_subreaper", "branch", "die_with_parent", "threads"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def become_subreaper() -> None:
    """Orphans below this process become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when `parent` ends; at once, if it has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def branch(keeper: int) -> bool:
    """Fork. True in the new process, which is the keeper's child and the leader of a group of its own.

    It is forked twice, so that it becomes an orphan and the keeper's. Only then may it tie its life to its
    parent's: the signal is sent for whichever parent it has at the time.
    """
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return False
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        os.sched_yield()
    die_with_parent(keeper)
    os.setsid()
    return True


def threads() -> int:
    """How many threads this process has, Python's or not."""
    return len(os.listdir("/proc/self/task"))
