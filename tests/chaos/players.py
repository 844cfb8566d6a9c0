"""Sessions that are played until they are told to stop, and what became of each of their steps."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from envtorch import State, StepResult, VectorEnv
from envtorch.client.client_options import GivenOptions, Wire
from envtorch.errors import EnvTorchError, SessionLost
from tests.chaos.environment import Mark, MarkingEnv, Seen

CALL_S = 20.0
RECONNECT_S = 20.0
LATEST_S = 3 * (CALL_S + RECONNECT_S)
"""When a call counts as hung: long after everything that it may wait for has run out."""


@dataclass
class Tally:
    """What the players saw. Each player has one of its own; `+=` adds them up."""

    sessions: int = 0
    acknowledged: list[tuple[str, int]] = field(default_factory=list)
    losses: Counter[str] = field(default_factory=Counter)
    """Calls that ended in an error of ours, by its class."""
    untyped: list[str] = field(default_factory=list)
    """Calls that ended in any other error."""
    wrong: list[str] = field(default_factory=list)
    """Answers that belong to another step."""
    hung: list[str] = field(default_factory=list)
    """Calls that took longer than all their deadlines."""

    def __iadd__(self, other: "Tally") -> "Tally":
        self.sessions += other.sessions
        self.acknowledged += other.acknowledged
        self.losses += other.losses
        self.untyped += other.untyped
        self.wrong += other.wrong
        self.hung += other.hung
        return self

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """One call of a client: how long it took, and what it ended with. Errors of ours are raised again."""
        began = time.monotonic()
        try:
            yield
        except EnvTorchError as error:
            self.losses[type(error).__name__] += 1
            raise
        finally:
            took = time.monotonic() - began
            if took > LATEST_S:
                self.hung.append(f"{what}: {took:.0f} s")

    def take(self, asked: Mark, result: StepResult[Seen]) -> None:
        seen = result.observation
        if (seen.episode, seen.number, seen.steps) != (asked.episode, asked.number, asked.number + 1):
            self.wrong.append(f"asked {asked!r}, got {seen!r}")
        self.acknowledged.append((asked.episode, asked.number))


class Player:
    """One place to play at, one kind of client, and the dice."""

    def __init__(self, name: str, url: str, wire: Wire, wanted: Callable[[], bool]) -> None:
        self.name = name
        self.url = url
        self.wanted = wanted
        self.tally = Tally()
        self.dice = random.Random(name)
        self.options: GivenOptions = {
            "wire": wire,
            "connect_timeout_s": CALL_S,
            "message_timeout_s": CALL_S,
            "reconnect_s": RECONNECT_S,
            "heartbeat_s": 1.0,
            "wait_s": CALL_S,
        }
        self._episodes = itertools.count()
        self.current = "nothing yet"

    def next_episode(self) -> str:
        self.current = f"{self.name}.{next(self._episodes)}"
        return self.current

    def marks(self, episode: str) -> list[Mark]:
        waits = [0.0, 0.0, 0.0, 0.01, 0.1]
        return [
            Mark(episode=episode, number=number, wait_s=self.dice.choice(waits))
            for number in range(self.dice.randint(1, 30))
        ]

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Errors of ours have been counted; any other error is a finding, and play goes on."""
        try:
            yield
        except EnvTorchError:
            pass
        except Exception as error:
            self.tally.untyped.append(f"{self.current}: {error!r}")


class BlockingPlayer(Player):
    def play(self) -> None:
        while self.wanted():
            with self.surviving(), MarkingEnv(self.url, **self.options) as env:
                self.tally.sessions += 1
                for _ in range(self.dice.randint(1, 3)):
                    with suppress(SessionLost):  # `reset` opens a new session
                        self._episode(env)
            time.sleep(0.02)

    def _episode(self, env: MarkingEnv) -> None:
        episode = self.next_episode()
        with self.tally.call(f"{episode} reset"):
            env.reset(episode_id=episode)
        for mark in self.marks(episode):
            with self.tally.call(f"{episode} step {mark.number}"):
                result = env.step(mark)
            self.tally.take(mark, result)
            time.sleep(self.dice.choice([0.0, 0.02]))


class AsyncPlayer(Player):
    async def play(self) -> None:
        while self.wanted():
            with self.surviving():
                async with MarkingEnv.aio(self.url, **self.options) as env:
                    self.tally.sessions += 1
                    for _ in range(self.dice.randint(1, 3)):
                        with suppress(SessionLost):  # `reset` opens a new session
                            await self._episode(env)
            await asyncio.sleep(0.02)

    async def _episode(self, env: Any) -> None:
        episode = self.next_episode()
        with self.tally.call(f"{episode} reset"):
            await env.reset(episode_id=episode)
        for mark in self.marks(episode):
            with self.tally.call(f"{episode} step {mark.number}"):
                result = await env.step(mark)
            self.tally.take(mark, result)
            await asyncio.sleep(self.dice.choice([0.0, 0.02]))


class VectorPlayer(Player):
    SIZE = 10

    def play(self) -> None:
        while self.wanted():
            with self.surviving(), MarkingEnv.vector(self.url, self.SIZE, **self.options) as envs:
                self.tally.sessions += self.SIZE
                for _ in range(self.dice.randint(1, 3)):
                    self._episodes_of(envs)
            time.sleep(0.02)

    def _episodes_of(self, envs: VectorEnv[Mark, Seen, State]) -> None:
        episode = self.next_episode()
        with self.tally.call(f"{episode} reset"):
            begun = envs.reset()
        self._count(begun.errors.values())
        whole = set(range(self.SIZE)) - set(begun.errors)
        for number in range(self.dice.randint(1, 30)):
            marks = [Mark(episode=f"{episode}.{place}", number=number) for place in range(self.SIZE)]
            with self.tally.call(f"{episode} step {number}"):
                results = envs.step(marks)
            self._count(results.errors[place] for place in results.errors if place in whole)
            whole -= set(results.errors)  # after a failed step, this episode's numbers are its own
            for place in whole:
                self.tally.take(marks[place], results[place])

    def _count(self, errors: Iterable[EnvTorchError]) -> None:
        for error in errors:
            self.tally.losses[type(error).__name__] += 1
