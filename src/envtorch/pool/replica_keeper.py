"""Keeps the replicas of a pool alive: starts them, watches them, replaces the dead."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from envtorch.client.launch import Launch, Starter, plan
from envtorch.env import load_object
from envtorch.errors import ConfigurationError, EnvTorchError, ProviderFailed, SessionLost
from envtorch.pool.roster import Replica, Roster, Ticket
from envtorch.providers.ready import probe

__all__ = ["CLIENT_OPTIONS", "Keeper", "PoolOptions", "PoolStatus"]

logger = logging.getLogger(__name__)

CLIENT_OPTIONS: Mapping[str, Any] = MappingProxyType({"reconnect_s": 5.0})
"""What a pool's clients are made with. A dropped session is worth a few seconds; a dead server does not
come back at its address, and the episode is better played again elsewhere."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How many servers, how many sessions on each, and how they are watched. Times are seconds."""

    replicas: int = 4
    sessions_per_replica: int = 8
    max_waiting: int | None = None
    """How many may wait for a session before the next one is refused; None for no limit."""

    check_every_s: float = 1.0
    unhealthy_after: int = 3
    """How many health checks in a row a living server may miss before it is replaced."""

    give_up_after: int = 3
    """How many starts in a row may fail before a replica is given up."""

    def __post_init__(self) -> None:
        for name in ("replicas", "sessions_per_replica", "unhealthy_after", "give_up_after"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)!r}: a pool needs at least one")


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Where a pool stands."""

    ready: int
    """How many replicas serve now."""

    busy: int
    waiting: int
    replaced: int
    """How many replicas were found dead since the pool was opened."""


@dataclass(eq=False, slots=True)
class Slot:
    """One place for a replica, and the thread that keeps it filled."""

    number: int
    launch: Launch | None = None
    replica: Replica | None = None
    suspected: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    failure: EnvTorchError | None = None
    """Why this slot was given up."""


class Keeper:
    """The threads behind a pool, one for each replica."""

    def __init__(
        self,
        provider: "Callable[[], Starter] | str",
        image: str,
        start_options: Mapping[str, Any],
        options: PoolOptions,
    ) -> None:
        self._make = _maker(provider)
        self._image = image
        self._start_options = dict(start_options)
        self._options = options
        self._guard = threading.Lock()
        self._roster = Roster(max_waiting=options.max_waiting)
        self._slots = [Slot(number) for number in range(options.replicas)]
        self._closing = threading.Event()
        self._replaced = 0

    # For the pools: sessions.

    def ask(self, *, is_first: bool = False) -> Ticket:
        with self._guard:
            return self._roster.ask(is_first=is_first)

    def withdraw(self, ticket: Ticket) -> None:
        with self._guard:
            self._roster.withdraw(ticket)

    def give_back(self, replica: Replica) -> None:
        with self._guard:
            self._roster.give_back(replica)

    def suspect(self, replica: Replica) -> None:
        """A session on this replica broke: nobody else is sent there until it was looked at, which is now.

        Otherwise an episode could be lost again and again to a server that is dead but not yet missed.
        """
        with self._guard:
            self._roster.doubt(replica)
        self._slots[replica.slot].suspected.set()

    def status(self) -> PoolStatus:
        with self._guard:
            replicas = self._roster.replicas
            return PoolStatus(
                ready=len(replicas),
                busy=sum(replica.busy for replica in replicas),
                waiting=self._roster.waiting,
                replaced=self._replaced,
            )

    # Life.

    def open(self) -> None:
        for slot in self._slots:
            slot.thread = threading.Thread(
                target=self._keep, args=(slot,), name=f"envtorch-pool-{slot.number}", daemon=True
            )
            slot.thread.start()

    def close(self) -> None:
        """Stop every server. Sessions that are still in use are lost."""
        with self._guard:
            self._roster.close(SessionLost("the pool is closed"))
        self._closing.set()
        for slot in self._slots:
            slot.suspected.set()
            launch = slot.launch
            if launch is not None and slot.replica is None:
                launch.stop_container()  # ends a start that is still waiting
        for slot in self._slots:
            if slot.thread is not None:
                slot.thread.join()

    def _keep(self, slot: Slot) -> None:
        """Fill one slot, again and again, until the pool closes or it is given up."""
        failures = 0
        while not self._closing.is_set():
            try:
                slot.launch = plan(self._image, self._make(), self._start_options)
                url = slot.launch.run().base_url
            except Exception as error:  # providers are foreign code: whatever it is, the start failed
                failures += 1
                if self._closing.is_set() or self._give_up(slot, error, failures):
                    return
                self._closing.wait(min(FIRST_PAUSE_S * 2**failures, LONGEST_PAUSE_S))
                continue
            failures = 0
            self._serve(slot, slot.launch, url)

    def _serve(self, slot: Slot, launch: Launch, url: str) -> None:
        """Let sessions onto a replica that is ready, until it is dead; then remove its remains."""
        replica = Replica(slot.number, url, self._options.sessions_per_replica)
        slot.replica = replica
        with self._guard:
            self._roster.join(replica)
        try:
            reason = self._watch(slot, launch, replica)
            if reason is not None:
                logger.warning("replica %d at %s is replaced: %s", slot.number, url, reason)
        finally:
            with self._guard:
                self._roster.leave(replica)
                self._replaced += not self._closing.is_set()
            slot.replica = None
            try:
                launch.stop_container()
            except Exception as error:  # its successor is more important than its remains
                logger.warning("replica %d could not be stopped: %s", slot.number, error)

    def _watch(self, slot: Slot, launch: Launch, replica: Replica) -> str | None:
        """Return when the replica is dead, with the reason, or when the pool closes."""
        missed = 0
        while True:
            slot.suspected.wait(self._options.check_every_s)
            slot.suspected.clear()
            if self._closing.is_set():
                return None
            status = getattr(launch.provider, "status", None)
            if status is not None and not (found := status()).is_alive:
                return f"it {found.phase.value} {found.detail}".strip()
            answer = probe(replica.url)
            if answer is None:
                missed = 0
                with self._guard:
                    self._roster.trust(replica)
            elif (missed := missed + 1) >= self._options.unhealthy_after:
                return answer

    def _give_up(self, slot: Slot, error: Exception, failures: int) -> bool:
        logger.warning("replica %d did not start (%d): %s", slot.number, failures, error)
        if failures < self._options.give_up_after:
            return False
        with self._guard:
            slot.failure = error if isinstance(error, EnvTorchError) else ProviderFailed(repr(error))
            if all(other.failure is not None for other in self._slots):
                self._roster.close(slot.failure)
        return True


def _maker(provider: "Callable[[], Starter] | str") -> "Callable[[], Starter]":
    if not isinstance(provider, str):
        return provider
    name: str = provider
    make: Callable[[str], Starter] = load_object("envtorch.providers:make_provider")
    return lambda: make(name)
