"""`check_env` says what a step costs, and when a thread is not worth its cost."""

import time

from envtorch.testing import check_env
from tests.checking import faults

ACTIONS = [{"by": number} for number in (1, 2, 3)]
ADVICE = "set BLOCKING = False"


class Waits(faults.Sound):
    """A step that sleeps: it needs its thread."""

    def step(self, action: faults.Move) -> faults.Seen:
        time.sleep(0.005)
        return super().step(action)


class Computes(faults.Sound):
    """A step that uses the processor for longer than a thread costs."""

    def step(self, action: faults.Move) -> faults.Seen:
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        return super().step(action)


class OnTheLoop(faults.Sound):
    BLOCKING = False


def test_a_quick_step_on_a_thread_is_told_that_it_could_do_without() -> None:
    (note,) = check_env(faults.Sound, actions=ACTIONS).notes
    assert "a step takes" in note
    assert ADVICE in note


def test_a_step_that_waits_or_computes_keeps_its_thread() -> None:
    for kind in (Waits, Computes, OnTheLoop):
        (note,) = check_env(kind, actions=ACTIONS).notes
        assert "a step takes" in note
        assert ADVICE not in note, kind
