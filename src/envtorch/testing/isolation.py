"""Checks of what an environment does to others: to its neighbours, its process, its machine."""

import gc
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from envtorch.settings import restore_variables, variables
from envtorch.testing.report import Finding, NotRun, Severity
from envtorch.testing.subject import Subject

__all__ = ["isolation", "leaks", "process", "threads", "undisturbed"]

THREADS = 4
EPISODES = 3
PATIENCE_S = 10.0


def isolation(subject: Subject) -> Iterator[Finding]:
    """Two environments side by side do not notice each other."""
    with subject.player() as alone:
        expected = alone.episode(subject.reset_options(), subject.actions)
    with subject.player() as one, subject.player() as other:
        told = [one.told(one.reset(subject.reset_options()), "reset")]
        other.reset(subject.reset_options(seed=subject.seed + 1, episode_id="neighbour"))
        for action in subject.actions:
            observation = one.step(one.codec.decode_action(action))
            told.append(one.told(observation, "step"))
            other.step(other.codec.decode_action(action))
            if getattr(observation, "done", False):
                break
    if told != expected[: len(told)]:
        serious = subject.promises_concurrency
        yield Finding(
            "isolation",
            "an episode goes differently when another environment is played beside it",
            "keep everything on `self`: no class attributes, module globals or global random generator"
            + (" (or set SUPPORTS_CONCURRENT_SESSIONS = False)" if serious else ""),
            Severity.ERROR if serious else Severity.WARNING,
        )


def threads(subject: Subject) -> Iterator[Finding]:
    """Environments on several threads at once each play the episode they would play alone."""
    if not subject.promises_concurrency:
        raise NotRun("SUPPORTS_CONCURRENT_SESSIONS is False")
    with subject.player() as alone:
        expected = alone.episode(subject.reset_options(), subject.actions)
    together = threading.Barrier(THREADS)

    def in_step() -> None:
        """Every thread takes its steps when the others do, so that what they share is really shared."""
        with suppress(threading.BrokenBarrierError):  # an episode ended early somewhere: go on alone
            together.wait(timeout=PATIENCE_S)

    def play(_: int) -> list[list[bytes]]:
        with subject.player() as player:
            options, actions = subject.reset_options(), subject.actions
            return [player.episode(options, actions, in_step) for _ in range(EPISODES)]

    with ThreadPoolExecutor(THREADS) as pool:
        played = [episode for episodes in pool.map(play, range(THREADS)) for episode in episodes]
    wrong = sum(episode != expected for episode in played)
    if wrong:
        yield Finding(
            "threads",
            f"{wrong} of {len(played)} episodes went differently on {THREADS} threads at once",
            "share nothing between environments, or protect it with a lock, or set "
            "SUPPORTS_CONCURRENT_SESSIONS = False",
        )


def process(subject: Subject) -> Iterator[Finding]:
    """The working directory, the environment variables and the global random generator stay as they were."""

    def seen() -> dict[str, Any]:
        return {
            "the working directory": os.getcwd(),
            "the environment variables": variables(),
            "the global random generator": random.getstate(),
        }

    before = seen()
    with subject.player() as player:
        player.episode(subject.reset_options(), subject.actions)
    after = seen()
    for what, value in before.items():
        if after[what] != value:
            yield Finding(
                "process",
                f"playing an episode changes {what}, which all sessions of a server share",
                "use absolute paths, pass variables to child processes, and keep your own random generator",
                Severity.ERROR if subject.promises_concurrency else Severity.WARNING,
            )


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever the block does to the working directory and the environment variables is undone."""
    directory, before = os.getcwd(), variables()
    try:
        yield
    finally:
        os.chdir(directory)
        restore_variables(before)


def leaks(subject: Subject) -> Iterator[Finding]:
    """A closed environment leaves no thread and no open file behind."""

    def play() -> None:
        with subject.player() as player:
            player.episode(subject.reset_options(), subject.actions)

    play()  # what is made once and kept, such as a cache, is no leak
    gc.collect()
    before = _held()
    for _ in range(EPISODES):
        play()
    gc.collect()
    after = _held()
    for what, count in before.items():
        grown = after[what] - count
        if grown >= EPISODES:
            yield Finding(
                "leaks",
                f"{EPISODES} environments were made and closed, and {grown} {what} are left",
                "free in `close` what the environment opened; a server makes one environment per session",
            )


def _held() -> dict[str, int]:
    held = {"threads": threading.active_count()}
    descriptors = "/proc/self/fd"
    if os.path.isdir(descriptors):
        held["open files or sockets"] = len(os.listdir(descriptors))
    return held
