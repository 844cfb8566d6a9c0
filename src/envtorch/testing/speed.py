"""How long an environment's step takes, and whether it needs the thread that it has."""

import time
from collections.abc import Iterator
from statistics import median

from envtorch.protocol.binding import Colour
from envtorch.testing.subject import Subject

__all__ = ["speed_notes"]

STEPS = 60
QUICK_S = 100e-6
"""A step that uses less processor time than this costs less than handing it to a thread."""


def speed_notes(subject: Subject) -> Iterator[str]:
    """Say what a step costs, and that `BLOCKING = False` would pay where it is quick and never waits."""
    wall, processor = measured_steps(subject)
    if not wall:
        return
    used = median(processor)
    took = f"speed: a step takes {median(wall) * 1e6:,.0f} µs, {used * 1e6:,.0f} µs of them on the processor"
    with subject.player() as player:
        on_thread = player.environment.BLOCKING and player.binding.colour is Colour.SYNC
    waits = median(wall) > 2 * used + QUICK_S
    if on_thread and used < QUICK_S and not waits:
        yield (
            f"{took}, less than a thread costs. If no step ever waits (for a file, the network, a process "
            "or a lock), set BLOCKING = False on the class: the server then calls it without a thread."
        )
    else:
        yield f"{took}."


def measured_steps(subject: Subject) -> tuple[list[float], list[float]]:
    """Seconds per step, by the clock and on the processor. Episodes that end are begun again."""
    wall: list[float] = []
    processor: list[float] = []
    with subject.player() as player:
        while len(wall) < STEPS:
            player.reset(subject.reset_options())
            before = len(wall)
            for given in subject.actions:
                action = subject.codec.decode_action(given)
                began, used = time.perf_counter(), time.thread_time()
                observation = player.step(action)
                wall.append(time.perf_counter() - began)
                processor.append(time.thread_time() - used)
                if getattr(observation, "done", False):
                    break
            if len(wall) == before or sum(wall) > 1.0:
                break  # there are no actions, or the steps are slow enough to be known by now
    return wall, processor
