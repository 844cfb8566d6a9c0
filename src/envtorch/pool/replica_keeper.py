"""Keeps the replicas of a pool alive: starts them, watches them, replaces the dead."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from envtorch.client.launch import Launch, Starter, plan
from envtorch.env import load_object
from envtorch.errors import ConfigurationError, EnvTorchError, ProviderFailed, SessionLost
from envtorch.pool.pool_size import GROW_AFTER_S, SHRINK_AFTER_S, PoolLoad, PoolSize, SizeLimits, next_size
from envtorch.pool.roster import Batch, Replica, Roster, Ticket
from envtorch.protocol.arguments import is_duration, is_whole
from envtorch.providers.ready import is_shutting_down, live_sessions, probe
from envtorch.shown_urls import shown_url

__all__ = ["CLIENT_OPTIONS", "Keeper", "PoolOptions", "PoolStatus"]

logger = logging.getLogger(__name__)

CLIENT_OPTIONS: Mapping[str, Any] = MappingProxyType({"reconnect_s": 5.0})
"""What a pool's clients are made with. A dropped session is worth a few seconds; a dead server does not
come back at its address, and the episode is better played again elsewhere."""

FIRST_PAUSE_S = 0.4
LONGEST_PAUSE_S = 30.0
"""How long a slot waits between two starts that fail: twice as long each time, up to the longest."""

SETTLED_S = 10.0
"""A replica that dies sooner than this after it was ready, again, counts as a start that failed, for the
pauses."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How many servers, how many sessions on each, and how they are watched. Times are seconds."""

    replicas: int | tuple[int, int] = 4
    """A number; or the least and the most, between which the pool grows and shrinks."""

    sessions_per_replica: int = 8
    grow_after_s: float = GROW_AFTER_S
    shrink_after_s: float = SHRINK_AFTER_S
    """See `SizeLimits`."""

    max_waiting: int | None = None
    """How many may wait for a session before the next one is refused; None for no limit."""

    check_every_s: float = 1.0
    unhealthy_after: int = 3
    """How many health checks in a row a living server may miss before it is replaced."""

    give_up_after: int = 3
    """How many starts in a row may fail before a replica counts as failing. A pool that fails whole, before
    it had any replica, is given up."""

    def __post_init__(self) -> None:
        for name in ("sessions_per_replica", "unhealthy_after", "give_up_after"):
            if not is_whole(getattr(self, name)) or getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)!r}: a whole number, 1 or more")
        if self.max_waiting is not None and (not is_whole(self.max_waiting) or self.max_waiting < 0):
            raise ConfigurationError(f"max_waiting={self.max_waiting!r}: a whole number, 0 or more, or None")
        if not is_duration(self.check_every_s) or self.check_every_s == 0:
            raise ConfigurationError(f"check_every_s={self.check_every_s!r}: seconds, more than 0")
        self.limits  # noqa: B018  # raises what is wrong with them

    @property
    def limits(self) -> SizeLimits:
        match self.replicas:
            case (int(least), int(most)):
                return SizeLimits(least, most, self.grow_after_s, self.shrink_after_s)
            case int(number):
                return SizeLimits(number, number, self.grow_after_s, self.shrink_after_s)
        raise ConfigurationError(f"replicas={self.replicas!r}: a number, or the least and the most")


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Where a pool stands."""

    ready: int
    """How many replicas serve now, those that retire included."""

    wanted: int
    """How many there should be."""

    busy: int
    waiting: int
    replaced: int
    """How many replicas were found dead since the pool was opened."""

    failing: int = 0
    """How many replicas cannot be started at present; they are tried again, every 30 s at least."""

    failure: EnvTorchError | None = None
    """Why the last of them could not be started."""


@dataclass(eq=False, slots=True)
class Slot:
    """One place for a replica, and the thread that keeps it filled."""

    number: int
    is_wanted: bool = False
    is_running: bool = False
    """Its thread has not ended."""
    launch: Launch | None = None
    replica: Replica | None = None
    suspected: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    failure: EnvTorchError | None = None
    """Why its last starts failed; None again when one succeeds."""

    @property
    def is_failing(self) -> bool:
        return self.is_wanted and self.failure is not None


class Keeper:
    """The threads behind a pool: one for each replica, and one that decides how many there are."""

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
        self._limits = options.limits
        self._size = PoolSize(self._limits.least)
        self._slots = [Slot(number) for number in range(self._limits.most)]
        self._sizer: threading.Thread | None = None
        self._closing = threading.Event()
        self._replaced = 0
        self._had_replica = False
        self._is_open = self._is_closed = False

    # For the pools: sessions.

    def ask(self, batch: Batch, *, is_first: bool = False) -> Ticket:
        with self._guard:
            if not self._is_open:
                raise ConfigurationError(
                    "the pool is not open: use it in a `with` block, or call open() first"
                )
            return self._roster.ask(batch, is_first=is_first, now=time.monotonic())

    def withdraw(self, ticket: Ticket) -> None:
        with self._guard:
            self._roster.withdraw(ticket)

    def end(self, batch: Batch, error: EnvTorchError) -> None:
        """Nobody of this batch waits for a session any more, or gets one."""
        with self._guard:
            self._roster.end(batch, error)

    def give_back(self, replica: Replica) -> None:
        with self._guard:
            self._roster.give_back(replica)
            if replica.may_leave:
                self._slots[replica.slot].suspected.set()

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
                wanted=self._size.replicas,
                busy=sum(replica.busy for replica in replicas),
                waiting=self._roster.waiting,
                replaced=self._replaced,
                failing=sum(slot.is_failing for slot in self._slots),
                failure=next((slot.failure for slot in self._slots if slot.is_failing), None),
            )

    # Life.

    def open(self) -> None:
        """Start the servers, once. Raises `ConfigurationError` after `close`."""
        with self._guard:
            if self._is_closed:
                raise ConfigurationError("a pool that was closed cannot be opened again: make another one")
            if self._is_open:
                return
            self._is_open = True
            self._fit()
        if self._limits.least < self._limits.most:
            self._sizer = threading.Thread(target=self._resize, name="envtorch-pool-size", daemon=True)
            self._sizer.start()

    def close(self) -> None:
        """Stop every server. Sessions that are still in use are lost."""
        with self._guard:
            self._is_closed = True
            self._roster.close(SessionLost("the pool is closed"))
        self._closing.set()
        if self._sizer is not None:
            self._sizer.join()
        for slot in self._slots:
            slot.suspected.set()
            launch = slot.launch
            if launch is not None and slot.replica is None:
                self._stop(slot, launch)  # ends a start that is still waiting
        for slot in self._slots:
            if slot.thread is not None:
                slot.thread.join()

    # Growing and shrinking.

    def _resize(self) -> None:
        """Look again and again how many replicas there should be."""
        while not self._closing.wait(min(self._options.check_every_s, max(self._limits.grow_after_s, 0.05))):
            with self._guard:
                before, now = self._size.replicas, time.monotonic()
                self._size = next_size(self._size, self._load(now), self._limits, now)
                if self._size.replicas != before:
                    logger.info("the pool goes from %d to %d replicas", before, self._size.replicas)
                    self._fit()

    def _load(self, now: float) -> PoolLoad:
        since = self._roster.waiting_since
        starting = (slot.is_wanted and slot.replica is None and slot.failure is None for slot in self._slots)
        return PoolLoad(
            starting=sum(starting),
            sessions_per_replica=self._options.sessions_per_replica,
            busy=sum(replica.busy for replica in self._roster.replicas),
            waiting=self._roster.waiting,
            longest_wait_s=0.0 if since is None else now - since,
        )

    def _fit(self) -> None:
        """Have as many slots wanted as there should be replicas. The caller holds the lock."""
        ranked = sorted(self._slots, key=_cost_of_leaving)
        too_many = sum(slot.is_wanted for slot in ranked) - self._size.replicas
        for slot in [slot for slot in ranked if slot.is_wanted][: max(too_many, 0)]:
            self._dismiss(slot)
        for slot in [slot for slot in reversed(ranked) if not slot.is_wanted][: max(-too_many, 0)]:
            self._want(slot)

    def _dismiss(self, slot: Slot) -> None:
        slot.is_wanted = False
        if slot.replica is not None:
            self._roster.retire(slot.replica)
            slot.suspected.set()

    def _want(self, slot: Slot) -> None:
        slot.is_wanted = True
        if slot.replica is not None:
            self._roster.keep(slot.replica)
        if not slot.is_running:
            slot.failure = None
            slot.is_running = True
            name = f"envtorch-pool-{slot.number}"
            slot.thread = threading.Thread(target=self._keep, args=(slot,), name=name, daemon=True)
            slot.thread.start()

    # One slot.

    def _is_over(self, slot: Slot) -> bool:
        """Whether a slot's thread has no more to do; then it counts as ended."""
        with self._guard:
            slot.is_running = slot.is_wanted and not self._closing.is_set()
            return not slot.is_running

    def _keep(self, slot: Slot) -> None:
        """Fill one slot, again and again, until the pool closes or is given up, or the slot is not wanted."""
        failures = early_deaths = 0
        while not self._is_over(slot):
            try:
                slot.launch = plan(self._image, self._make(), self._start_options)
                url = slot.launch.run().base_url
            except Exception as error:  # providers are foreign code: whatever it is, the start failed
                failures += 1
                if not self._closing.is_set():
                    self._note_failure(slot, error, failures)
                # While it is open whether the pool can start at all, no slot begins anew.
                is_given_up = slot.failure is not None and not self._had_replica
                self._closing.wait(LONGEST_PAUSE_S if is_given_up else _pause_s(failures))
                continue
            failures, began = 0, time.monotonic()
            has_died = self._serve(slot, slot.launch, url)
            early_deaths = early_deaths + 1 if has_died and time.monotonic() - began < SETTLED_S else 0
            if early_deaths > 1:
                self._closing.wait(_pause_s(early_deaths - 1))

    def _serve(self, slot: Slot, launch: Launch, url: str) -> bool:
        """Let sessions onto a replica that is ready, until it is dead; then remove its remains.

        False if it left in another way: it has retired, or the pool closes."""
        replica = Replica(slot.number, url, self._options.sessions_per_replica)
        with self._guard:
            slot.replica, slot.failure = replica, None
            self._had_replica = True
            replica.is_retiring = not slot.is_wanted
            self._roster.join(replica)
        try:
            reason = self._watch(slot, launch, replica)
        except Exception as error:  # whatever it is, the slot is filled again
            reason = f"it could not be watched: {error!r}"
        if reason is not None:
            logger.warning("replica %d at %s is replaced: %s", slot.number, shown_url(url), reason)
        with self._guard:
            self._roster.leave(replica)
            self._replaced += reason is not None
            slot.replica = None
        self._stop(slot, launch)
        return reason is not None

    def _stop(self, slot: Slot, launch: Launch) -> None:
        """Stop a server. One that cannot be stopped holds up no other, nor its successor."""
        try:
            launch.stop_container()
        except Exception as error:
            logger.warning("replica %d could not be stopped: %s", slot.number, error)

    def _watch(self, slot: Slot, launch: Launch, replica: Replica) -> str | None:
        """Return when the replica is dead, with the reason, when it has retired, or when the pool closes."""
        missed, could_tell = 0, True
        while True:
            was_suspected = slot.suspected.wait(self._options.check_every_s)
            slot.suspected.clear()
            if self._closing.is_set() or self._has_retired(replica):
                return None
            try:
                if (ended := _ended(launch.provider)) is not None:
                    return ended
            except Exception as error:  # it says nothing about the server, which is asked next
                if could_tell:
                    logger.warning(
                        "replica %d: its provider cannot tell whether it lives: %s", slot.number, error
                    )
                could_tell = False
            else:
                could_tell = True
            answer = probe(replica.url)
            if answer is None:
                missed = 0
                # A server that was told to stop from outside keeps its sessions, and gets no other.
                is_leaving = was_suspected and is_shutting_down(replica.url)
                with self._guard:
                    if is_leaving:
                        self._roster.retire(replica)
                    self._roster.trust(replica)
            elif (missed := missed + 1) >= self._options.unhealthy_after:
                return answer

    def _has_retired(self, replica: Replica) -> bool:
        """Whether a replica that is to leave has no session any more; then it gets none again.

        Copies that a fork has made are sessions of the server that the pool did not give out.
        """
        if not replica.may_leave or live_sessions(replica.url):
            return False
        with self._guard:
            is_leaving = replica.may_leave  # it may be needed after all, meanwhile
            if is_leaving:
                self._roster.leave(replica)
            return is_leaving

    def _note_failure(self, slot: Slot, error: Exception, failures: int) -> None:
        """A start failed. When every slot fails, those who wait learn why; a pool that never had a replica
        is over then."""
        logger.warning("replica %d did not start (%d): %s", slot.number, failures, error)
        if failures < self._options.give_up_after:
            return
        with self._guard:
            slot.failure = error if isinstance(error, EnvTorchError) else ProviderFailed(repr(error))
            if not all(other.failure is not None for other in self._slots if other.is_wanted):
                return
            if self._had_replica:
                self._roster.refuse(slot.failure, now=time.monotonic())
            else:
                self._roster.close(slot.failure)
                self._closing.set()


def _pause_s(failures: int) -> float:
    """How long a slot waits after so many failures in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S)


def _ended(provider: Starter) -> str | None:
    """How its server ended, as a provider tells; None while it lives, or where a provider tells nothing."""
    status = getattr(provider, "status", None)
    if status is None or (found := status()).is_alive:
        return None
    return f"it {found.phase.value} {found.detail}".strip()


def _cost_of_leaving(slot: Slot) -> tuple[bool, int]:
    """Slots whose replica is not there yet leave first, then those with the fewest sessions."""
    return slot.replica is not None, slot.replica.busy if slot.replica is not None else 0


def _maker(provider: "Callable[[], Starter] | str") -> "Callable[[], Starter]":
    if isinstance(provider, str):
        load_object("envtorch.providers:require_provider")(provider)
        name: str = provider
        make: Callable[[str], Starter] = load_object("envtorch.providers:make_provider")
        return lambda: make(name)
    if not callable(provider):
        raise ConfigurationError(
            f"provider={provider!r}: a class or a function that makes a provider for each server, or a name"
        )
    return provider
