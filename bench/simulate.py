"""A pool of a thousand replicas in virtual time: `python -m bench.simulate [--episodes N] [--plot FILE]`.

The placement is the pool's own (`envtorch.pool.roster`); time, servers and nodes are simulated. A node with
its replicas is lost every minute; the engine brings another after a while. Episodes are as long as those of
agents: most are short, few are very long. What is not simulated: the network, and the servers' own load.
"""

import argparse
import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from envtorch.pool.roster import Replica, Roster, Ticket

__all__ = ["Plan", "Simulation", "Tally"]


@dataclass(frozen=True)
class Plan:
    """What is simulated. Times are seconds."""

    replicas: int = 1000
    sessions_per_replica: int = 256
    replicas_per_node: int = 8
    episodes: int = 1_000_000
    load: float = 0.95
    """How many episodes are played at once, as a part of all sessions."""
    recovers: bool = True
    """With `recover="replay"`; else an episode that is lost begins again."""
    median_steps: float = 50.0
    spread: float = 1.2
    """The standard deviation of the logarithm of an episode's length."""
    most_steps: int = 1000
    step_s: float = 5.0
    """A turn: the policy's completion and the step itself."""
    replay_step_s: float = 0.002
    """A step that is played again needs no policy (`python -m bench.recovery`)."""
    open_s: float = 0.05
    loss_every_s: float = 60.0
    notice_s: float = 1.0
    """How long until clients of a dead node have noticed."""
    replace_s: tuple[float, float] = (30.0, 120.0)
    """How long the engine takes to bring another node, at least and at most."""
    seed: int = 1

    @property
    def capacity(self) -> int:
        return self.replicas * self.sessions_per_replica


@dataclass(eq=False, slots=True)
class Episode:
    """One episode: how long it is, and where it stands."""

    steps: int
    done: int = 0
    replica: Replica | None = None
    asked: float = 0.0
    resumed: float = 0.0
    """When it took its first new step on its replica."""
    turn: int = 0
    """Counts its moves: an event of an earlier turn is void."""


@dataclass
class Tally:
    """What came of it."""

    finished: int = 0
    nodes_lost: int = 0
    hit: int = 0
    """How often an episode lost its server."""
    steps: int = 0
    """Steps that were played with the policy, those for nothing included."""
    replayed_steps: int = 0
    waits: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """From a loss to the first new step."""
    ended: float = 0.0
    crowded_s: float = 0.0
    """When the last episode began: from then on sessions become free, and stay so."""
    busy_s: float = 0.0
    ready_s: float = 0.0
    curve: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Time, sessions that are busy, sessions that there are, episodes that wait."""

    @property
    def utilisation(self) -> float:
        return self.busy_s / self.ready_s

    def quantile(self, values: list[float], part: float) -> float:
        return sorted(values)[min(int(part * len(values)), len(values) - 1)] if values else 0.0


def lengths(plan: Plan) -> Iterator[int]:
    """How many steps each episode has."""
    dice = random.Random(plan.seed)
    while True:
        drawn = dice.lognormvariate(0.0, plan.spread) * plan.median_steps
        yield min(max(1, round(drawn)), plan.most_steps)


class Simulation:
    """Events in the order of their time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally()
        self._dice = random.Random(plan.seed)
        self._lengths = lengths(plan)
        self._roster = Roster()
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._left = plan.episodes
        self._playing = 0
        self._busy = self._ready = 0
        self._nodes: dict[int, list[Replica]] = {}
        self._on: dict[Replica, set[Episode]] = {}
        self._slots = itertools.count()

    def run(self) -> Tally:
        for _ in range(self.plan.replicas // self.plan.replicas_per_node):
            self._join_node()
        for _ in range(int(self.plan.capacity * self.plan.load)):
            self._begin()
        self._after(self.plan.loss_every_s, self._lose_node)
        self._sample()
        while self._events and self.tally.finished < self.plan.episodes:
            when, _, happen = heapq.heappop(self._events)
            self._advance(when)
            happen()
        self.tally.ended = self._now
        return self.tally

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), happen))

    def _advance(self, when: float) -> None:
        if self._left:
            self.tally.busy_s += self._busy * (when - self._now)
            self.tally.ready_s += self._ready * (when - self._now)
        self._now = when

    def _sample(self) -> None:
        self.tally.curve.append((self._now, self._busy, self._ready, self._roster.waiting))
        self._after(10.0, self._sample)

    # Nodes.

    def _join_node(self) -> None:
        node = next(self._slots)
        each = self.plan.sessions_per_replica
        replicas = [Replica(node, f"node{node}", each) for _ in range(self.plan.replicas_per_node)]
        self._nodes[node] = replicas
        self._ready += each * len(replicas)
        for replica in replicas:
            self._on[replica] = set()
            self._roster.join(replica)

    def _lose_node(self) -> None:
        node = self._dice.choice(list(self._nodes))
        self.tally.nodes_lost += 1
        for replica in self._nodes.pop(node):
            self._ready -= replica.capacity
            self._roster.leave(replica)
            for episode in self._on.pop(replica):
                self._hit(episode)
        self._after(self._dice.uniform(*self.plan.replace_s), self._join_node)
        self._after(self.plan.loss_every_s, self._lose_node)

    def _hit(self, episode: Episode) -> None:
        """An episode lost its server: it asks for another place, before those who have not begun."""
        self.tally.hit += 1
        self._busy -= 1
        since_s = max(0.0, self._now - episode.resumed)
        taken = min(int(since_s / self.plan.step_s), episode.steps - episode.done)
        self.tally.steps += taken
        episode.done = episode.done + taken if self.plan.recovers else 0
        episode.turn += 1
        episode.replica = None
        turn = episode.turn
        self._after(self.plan.notice_s, lambda: self._ask(episode, turn))

    # Episodes.

    def _begin(self) -> None:
        if self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            self.tally.crowded_s = self._now
        self._ask(Episode(next(self._lengths)), 0)

    def _ask(self, episode: Episode, turn: int) -> None:
        episode.asked = self._now
        ticket: Ticket = self._roster.ask(is_first=turn > 0 and self.plan.recovers)
        ticket.granted.add_done_callback(lambda granted: self._granted(episode, granted.result()))

    def _granted(self, episode: Episode, replica: Replica) -> None:
        self._busy += 1
        self.tally.waits.append(self._now - episode.asked)
        episode.replica = replica
        self._on[replica].add(episode)
        replay_s = episode.done * self.plan.replay_step_s
        self.tally.replayed_steps += episode.done
        episode.resumed = self._now + self.plan.open_s + replay_s
        if episode.turn:
            self.tally.recoveries.append(episode.resumed - episode.asked + self.plan.notice_s)
        turn = episode.turn
        rest_s = (episode.steps - episode.done) * self.plan.step_s
        self._after(episode.resumed - self._now + rest_s, lambda: self._finish(episode, turn))

    def _finish(self, episode: Episode, turn: int) -> None:
        if episode.turn != turn:
            return  # it lost its server before
        replica = episode.replica
        assert replica is not None
        self.tally.steps += episode.steps - episode.done
        self.tally.finished += 1
        self._busy -= 1
        self._on[replica].discard(episode)
        self._roster.give_back(replica)
        self._begin()


def row(plan: Plan, tally: Tally, needed: int) -> list[str]:
    """One line of the table."""
    return [
        "replay" if plan.recovers else "begin again",
        f"{plan.load:.0%}",
        f"{tally.finished:,}",
        f"{tally.nodes_lost}",
        f"{tally.hit:,}",
        f"{tally.replayed_steps:,}",
        f"{tally.steps / needed - 1:.2%}",
        f"{tally.utilisation:.1%}",
        f"{tally.quantile(tally.waits, 0.99):.1f}",
        f"{tally.quantile(tally.recoveries, 0.5):.2f}",
        f"{tally.quantile(tally.recoveries, 0.99):.1f}",
        f"{tally.crowded_s / 60:.0f} + {(tally.ended - tally.crowded_s) / 60:.0f}",
    ]


HEADINGS = [
    "after a loss",
    "load",
    "finished",
    "nodes lost",
    "losses of a server",
    "steps played again",
    "policy's steps wasted",
    "utilisation",
    "wait p99, s",
    "recovery p50, s",
    "recovery p99, s",
    "minutes, until the last began, and ended",
]


def needed_steps(plan: Plan) -> int:
    """The steps of all episodes, if nothing is lost."""
    return sum(itertools.islice(lengths(plan), plan.episodes))


def draw(curves: list[tuple[Plan, Tally]], path: str) -> None:
    """Sessions that are busy and that there are, and episodes that wait, over time."""
    import matplotlib

    matplotlib.use("svg" if path.endswith(".svg") else "agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(curves), 1, figsize=(9, 2.4 * len(curves)), sharex=False, squeeze=False)
    for (plan, tally), (axis,) in zip(curves, axes, strict=True):
        minutes = [time / 60 for time, *_ in tally.curve]
        axis.plot(minutes, [ready / 1000 for _, _, ready, _ in tally.curve], label="sessions there are")
        axis.plot(minutes, [busy / 1000 for _, busy, _, _ in tally.curve], label="sessions busy")
        axis.plot(minutes, [waiting / 1000 for *_, waiting in tally.curve], label="episodes waiting")
        how = "replay" if plan.recovers else "begin again"
        axis.set_title(f"load {plan.load:.0%}, {how}", fontsize=9)
        axis.set_ylabel("thousands")
    axes[-1][0].set_xlabel("minutes")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


FEWEST_NODES = 20
"""With fewer, an episode that begins again hardly ever ends between two losses of its node."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=Plan.episodes)
    parser.add_argument("--replicas", type=int, default=Plan.replicas)
    parser.add_argument("--plot", help="where to draw the curves, as .png or .svg")
    args = parser.parse_args(arguments)
    fewest = FEWEST_NODES * Plan.replicas_per_node
    if args.replicas < fewest:
        parser.error(f"--replicas: give {fewest} or more, as a node is lost every {Plan.loss_every_s:g} s")
    sessions = args.replicas * Plan.sessions_per_replica
    if args.episodes <= sessions:
        parser.error(f"--episodes: give more than the {sessions} sessions of {args.replicas} replicas")
    base = {"episodes": args.episodes, "replicas": args.replicas}
    needed = 0
    curves = []
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + "---|" * len(HEADINGS))
    for load in (0.95, 1.0):
        for recovers in (True, False):
            plan = Plan(load=load, recovers=recovers, **base)
            needed = needed or needed_steps(plan)
            tally = Simulation(plan).run()
            curves.append((plan, tally))
            print("| " + " | ".join(row(plan, tally, needed)) + " |", flush=True)
    if args.plot:
        draw(curves, args.plot)


if __name__ == "__main__":
    main()
