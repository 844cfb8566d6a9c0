"""A pool that grows and shrinks, in virtual time: `python -m bench.simulate_elastic`.

The decisions are the pool's own (`envtorch.pool.pool_size` and `envtorch.pool.roster`); time and servers are
simulated. As many episodes as a wave allows want to be played at once: few at night, all by day.
"""

import argparse
import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.simulate import Plan, lengths
from envtorch.pool.pool_size import PoolLoad, PoolSize, SizeLimits, next_size
from envtorch.pool.roster import Replica, Roster

__all__ = ["ElasticPlan", "ElasticSimulation", "ElasticTally"]

LIMITS = SizeLimits(5, 100)


@dataclass(frozen=True)
class ElasticPlan:
    """What is simulated. Times are seconds."""

    limits: SizeLimits = LIMITS
    sessions_per_replica: int = 64
    hours: float = 24.0
    wave_s: float = 12 * 3600.0
    lowest: float = 0.05
    """The part of all sessions that is wanted in the quietest moment; in the busiest it is 0.9 of them."""
    step_s: float = 5.0
    start_s: tuple[float, float] = (30.0, 120.0)
    """How long a replica takes until it is ready, at least and at most."""
    seed: int = 1

    def demand(self, now: float) -> int:
        """How many episodes want to be played at a time."""
        height = (1 - math.cos(2 * math.pi * now / self.wave_s)) / 2
        part = self.lowest + (0.9 - self.lowest) * height
        return round(part * self.limits.most * self.sessions_per_replica)


@dataclass
class ElasticTally:
    """What came of it."""

    finished: int = 0
    killed: int = 0
    """Episodes whose replica left before they had ended: there must be none."""
    waits: list[float] = field(default_factory=list)
    replica_s: float = 0.0
    changes: int = 0
    sizes: list[int] = field(default_factory=list)

    def wait(self, part: float) -> float:
        return sorted(self.waits)[min(int(part * len(self.waits)), len(self.waits) - 1)]


class ElasticSimulation:
    """Events in the order of their time."""

    def __init__(self, plan: ElasticPlan) -> None:
        self.plan = plan
        self.tally = ElasticTally()
        self._dice = random.Random(plan.seed)
        self._lengths = lengths(Plan(seed=plan.seed))
        self._roster = Roster()
        self._size = PoolSize(plan.limits.least)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._now = 0.0
        self._wanted = self._starting = 0
        """Episodes that are played or wait; replicas that are not ready yet."""

    def run(self) -> ElasticTally:
        for _ in range(self.plan.limits.least):
            self._join()
        self._look()
        while self._events[0][0] <= self.plan.hours * 3600:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        return self.tally

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), happen))

    def _look(self) -> None:
        """Once a second: new episodes, and whether the pool has the right size."""
        for _ in range(self.plan.demand(self._now) - self._wanted):
            self._begin()
        since = self._roster.waiting_since
        load = PoolLoad(
            starting=self._starting,
            sessions_per_replica=self.plan.sessions_per_replica,
            busy=sum(replica.busy for replica in self._roster.replicas),
            waiting=self._roster.waiting,
            longest_wait_s=0.0 if since is None else self._now - since,
        )
        before, self._size = self._size, next_size(self._size, load, self.plan.limits, self._now)
        self._fit(self._size.replicas - before.replicas)
        self.tally.sizes.append(self._size.replicas)
        self.tally.replica_s += len(self._roster.replicas) + self._starting
        self._after(1.0, self._look)

    # Replicas.

    def _fit(self, change: int) -> None:
        self.tally.changes += change != 0
        leaving = [replica for replica in self._roster.replicas if replica.is_retiring]
        for replica in leaving[: max(change, 0)]:
            self._roster.keep(replica)
        for _ in range(change - min(len(leaving), max(change, 0))):
            self._starting += 1
            self._after(self._dice.uniform(*self.plan.start_s), self._ready)
        staying = (replica for replica in self._roster.replicas if not replica.is_retiring)
        for replica in sorted(staying, key=lambda replica: replica.busy)[: max(-change, 0)]:
            self._roster.retire(replica)
            self._leave_if_idle(replica)

    def _ready(self) -> None:
        self._starting -= 1
        self._join()

    def _join(self) -> None:
        number = next(self._numbers)
        self._roster.join(Replica(number, f"replica{number}", self.plan.sessions_per_replica))

    def _leave_if_idle(self, replica: Replica) -> None:
        if replica.may_leave:
            self._roster.leave(replica)

    # Episodes.

    def _begin(self) -> None:
        self._wanted += 1
        asked = self._now
        ticket = self._roster.ask(now=asked)
        ticket.granted.add_done_callback(lambda granted: self._play(granted.result(), asked))

    def _play(self, replica: Replica, asked: float) -> None:
        self.tally.waits.append(self._now - asked)
        self._after(next(self._lengths) * self.plan.step_s, lambda: self._end(replica))

    def _end(self, replica: Replica) -> None:
        self.tally.finished += 1
        self.tally.killed += not replica.is_alive
        self._wanted -= 1
        self._roster.give_back(replica)
        self._leave_if_idle(replica)


HEADINGS = [
    "pool",
    "episodes",
    "cut off",
    "replica hours",
    "changes of size",
    "wait p50, s",
    "wait p99, s",
    "wait p99.9, s",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=ElasticPlan.hours)
    parser.add_argument("--most", type=int, default=LIMITS.most)
    args = parser.parse_args()
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + "---|" * len(HEADINGS))
    for least in (args.most, args.most // 20):
        plan = ElasticPlan(SizeLimits(least, args.most), hours=args.hours)
        tally = ElasticSimulation(plan).run()
        name = f"{least}" if least == args.most else f"{least} to {args.most}"
        told = [name, f"{tally.finished:,}", tally.killed, f"{tally.replica_s / 3600:,.0f}", tally.changes]
        told += [f"{tally.wait(part):.1f}" for part in (0.5, 0.99, 0.999)]
        print("| " + " | ".join(map(str, told)) + " |", flush=True)


if __name__ == "__main__":
    main()
