"""All the sessions of one server: where they come from, how they are found, when they end."""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from envtorch.env import EnvSpec
from envtorch.errors import (
    CapacityReached,
    ConfigurationError,
    Draining,
    EnvTorchError,
    FactoryFailed,
    InvalidAction,
    MissingExtra,
    SessionLost,
    Unsupported,
)
from envtorch.protocol.calls import Call
from envtorch.protocol.codec import Codec
from envtorch.protocol.host import EnvironmentHost
from envtorch.server.runners.environment_builder import build
from envtorch.server.runners.loop_runner import LoopRunner
from envtorch.server.runners.runner import Runner
from envtorch.server.runners.thread_runner import ThreadStock
from envtorch.server.sessions.environment_factory import Factory
from envtorch.server.sessions.other_replicas import missing
from envtorch.server.sessions.questions import Questions
from envtorch.server.sessions.remote_sessions import NoPeers, Peers
from envtorch.server.sessions.session import Session
from envtorch.server.sessions.session_copies import copies_of
from envtorch.server.sessions.slots import Names, Room, Slots
from envtorch.server.sessions.timed_builds import TimedBuilds
from envtorch.server.telemetry.metrics import Meter
from envtorch.server.telemetry.tracing import Span, no_span
from envtorch.types import ConcurrencyConfig, ServerCapacityStatus

if TYPE_CHECKING:  # only a server that records, or that isolates, loads them
    from envtorch.recording.recorder import Recorder
    from envtorch.server.runners.process.process_launcher import ProcessLauncher

__all__ = ["Sessions"]

logger = logging.getLogger(__name__)

UNHELD_LEASE_S = 900.0
"""How long a session lives that no socket ever held, when nobody said otherwise."""

CLOSE_S = 10.0
"""How long closing may take where no time to drain was set."""

SHORTEST_CLOSE_S = 1.0
"""How long closing may take after a drain that used up its time."""

MIN_TOKEN_LENGTH = 16

ANONYMOUS = ""
"""Stands for the anonymous session among those that are being opened; no token is empty."""

MOST_BUILDERS = 64
"""How many environments that live on the loop are built at once. A constructor may block, so each is built on
a thread that ends with it; thousands of those would leave the loop no turn."""


class Sessions:
    """Opens sessions while there is room, finds them by id or token, and frees a slot when, and only when,
    its session closes."""

    def __init__(
        self,
        factory: Factory,
        codec: Codec[Any, Any, Any],
        config: ConcurrencyConfig,
        launcher: "ProcessLauncher | None" = None,
    ) -> None:
        self.factory = factory
        self.config = config
        self.meter = Meter()
        self.slots: Room
        self.peers: Peers = NoPeers()
        """The other processes of this server, where a session may live that is not found here."""
        self.replica: str | None = None
        """The name of this server among several behind one address; session ids begin with it."""
        self.draining = False
        self.finishing = False
        self._finished = asyncio.Event()
        self.hanging: list[str] = []
        """What still ran when the server had closed everything else."""
        self.span: Span = no_span
        self.recorder: Recorder | None = None
        self.drain_listeners: set[Callable[[], None]] = set()
        self._codec = codec
        self._live: dict[str, Session] = {}
        self._by_token: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Task[Session]] = {}
        self.questions = Questions(self._live, self._build, lambda: not self.slots.is_full)
        self._known_class = factory.environment_class
        self._builders = asyncio.Semaphore(MOST_BUILDERS)
        self._need_threads: bool | None = None
        """Whether environments keep the thread they are built on; None before the first."""
        self.serves_anonymous: bool
        """Callers who never say who they are share one session. With room for more it would be a guess."""
        self._anonymous: Session | None = None
        self._launcher = launcher
        self.threads = ThreadStock()
        self.builds = TimedBuilds(factory.name)
        self.stop_at: float | None = None
        """When a server that was told to stop has to be stopped, on the event loop's clock."""
        self.make_room(config.max_concurrent_envs)

    def make_room(self, sessions: int) -> None:
        """Hold at most that many sessions, from the first one on. Raises `ConfigurationError` where several
        environments may not live side by side."""
        if self._known_class is not None and self._launcher is None:
            self.factory.require_concurrency(self._known_class, sessions)
        self.config = self.config.model_copy(update={"max_concurrent_envs": sessions})
        self.slots = Slots(sessions, lambda: self.stuck)
        self.serves_anonymous = sessions == 1

    # Looking.

    @property
    def capacity(self) -> int:
        return self.slots.capacity

    @property
    def active(self) -> int:
        return self.slots.taken

    @property
    def stuck(self) -> int:
        """How many slots are taken by sessions whose environment does not return from a call."""
        return self.builds.hanging + sum(session.is_stuck for session in self._live.values())

    @property
    def spec(self) -> EnvSpec[Any, Any, Any]:
        """What the environment's author says of it."""
        return self._codec.spec

    @property
    def stop_timeout_s(self) -> float:
        return self.config.stop_timeout

    def status(self) -> ServerCapacityStatus:
        return ServerCapacityStatus.from_counts(self.active, self.capacity)

    def phases(self) -> Counter[str]:
        """How many sessions are in which phase."""
        return Counter(session.phase.value for session in self._live.values())

    def all(self) -> list[Session]:
        """Every live session, oldest first."""
        return list(self._live.values())

    def find(self, session_id: str) -> Session | None:
        return self._live.get(session_id)

    def get(self, session_id: str, headers: Headers | None = None) -> Session:
        """The session that callers may use by its id. Raises `SessionLost`, or `SessionElsewhere`.

        An id is no secret: it stands in logs, recordings and states. Only sessions that were asked for by
        `openenv/session/create`, whose callers have nothing else, are found by it.
        """
        session = self._live.get(session_id)
        if session is None or not session.is_open_by_id:
            unknown = f"Unknown session_id: {session_id[:100]}"
            raise missing(session_id, self.replica, headers, SessionLost(unknown))
        return session

    def by_token(self, token: str) -> Session | None:
        """The session that this token opens. Tokens are random: looking one up tells nothing of others."""
        return self._by_token.get(token)

    async def elsewhere(self, name: str) -> int | None:
        """The worker that holds the session of this id or token; None when it is here, or nowhere."""
        if name in self._live or name in self._by_token:
            return None
        return await self.peers.owner(name)

    # Asking about the environment.

    async def spare(self) -> Runner:
        """A live environment to look at. Raises `FactoryFailed`.

        Nothing is built for that alone: a session's environment will do, else one is built and kept for the
        next session.
        """
        return await self.questions.runner()

    async def ask(self, call: Call) -> Any:
        """What some live environment answers to a call that is no part of an episode."""
        return await self.questions.ask(call)

    # Opening.

    async def open_once(self, token: str | None, grace_s: float | None, *, wait_s: float) -> Session:
        """The session of that token, opened if need be: asking again, on another socket, opens no second.

        It outlives its socket for the server's grace, or the client's, within the server's limit.
        """
        token = token or secrets.token_urlsafe(24)
        if len(token) < MIN_TOKEN_LENGTH:
            raise InvalidAction(f"a session token has at least {MIN_TOKEN_LENGTH} characters")
        session = self._by_token.get(token)
        if session is not None:
            return session
        grace = min(grace_s or self.config.reconnect_grace, self.config.max_reconnect_grace)
        return await self._shared(
            token, lambda: self.open(held=False, wait_s=wait_s, unheld_s=grace, token=token)
        )

    async def _shared(self, key: str, work: Callable[[], Coroutine[Any, Any, Session]]) -> Session:
        """The session that `work` opens, or that it opens already for another caller with the same key."""
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.get_running_loop().create_task(work())
            opening.add_done_callback(lambda _: self._opened(key))
        return await asyncio.shield(opening)

    async def open(
        self,
        *,
        held: bool,
        wait_s: float = 0.0,
        unheld_s: float | None = None,
        token: str | None = None,
    ) -> Session:
        """A new session. `held` by a socket it needs no lease; otherwise it has one.

        Raises `CapacityReached` when every slot is taken and none came free within `wait_s`, and
        `FactoryFailed` when the environment cannot be built.
        """
        if self.is_leaving:
            raise Draining("the server is shutting down and opens no session")
        if self.factory.is_shared and self._live:
            return next(iter(self._live.values()))
        if self.slots.is_full:
            await self._evict_anonymous()
        names = Names.new(token, self.replica)
        await self.slots.take(wait_s, names)
        try:
            spare = await self.questions.take_spare(waits=self.factory.is_shared)
        except BaseException:
            self.slots.free(names)
            raise
        runner = spare or await self._build(names)
        lease_s = None if held or self.factory.is_shared else unheld_s or self.lease_s
        session = self._enter(Session(runner, self, unheld_s=lease_s, names=names))
        if held and not self.factory.is_shared:
            session.attach()
        return session

    def _enter(self, session: Session) -> Session:
        self._live[session.id] = self._by_token[session.token] = session
        self.meter.opened += 1
        logger.debug("session %s opened, %d of %d", session.id[:8], self.active, self.capacity)
        return session

    def fork(
        self, session: Session, count: int, *, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, list[Session]]:
        """New sessions that are exact copies of `session`, all or none.

        The copying has its turn among the session's calls from now on: await the rest at once. Nobody holds
        the copies yet: their lease runs until their tokens are shown. Raises `CapacityReached` when
        there is no room for all of them, and `Unsupported` when the environment cannot be copied.
        """
        if self.factory.is_shared:
            raise Unsupported("this environment cannot be forked: every session shares the one instance")
        if count > self.slots.capacity:  # before anything is made for each of them
            raise CapacityReached.of(self.slots.taken, self.slots.capacity, copies=count)
        outcome = session.submit(Call.with_arguments("fork", count), timeout_s=timeout_s, is_ready=False)
        if outcome.error is not None:
            raise outcome.error
        return copies_of(
            session,
            outcome,
            [Names.new(replica=self.replica) for _ in range(count)],
            slots=self.slots,
            enter=partial(self._enter_copy, session),
            discard=self.builds.discard,
        )

    def _enter_copy(self, origin: Session, runner: Runner, names: Names) -> Session:
        unheld_s = origin.unheld_s or self.lease_s
        return self._enter(Session(runner, self, unheld_s=unheld_s, names=names, copy_of=origin))

    def trace(self, span: Span) -> None:
        """Surround every call with a span."""
        self.span = span

    def record(self, recorder: "Recorder") -> None:
        """Record the calls of every session opened from now on."""
        self.recorder = recorder

    def isolate(self, launcher: "ProcessLauncher") -> None:
        """From the first session on, environments live in processes of their own."""
        self._launcher = launcher

    @property
    def is_isolated(self) -> bool:
        return self._launcher is not None

    @property
    def lease_s(self) -> float:
        return self.config.session_timeout or UNHELD_LEASE_S

    async def _build(self, names: Names | None = None) -> Runner:
        """A new environment. Raises `FactoryFailed`, also for a constructor that takes too long.

        A process is then killed. A thread cannot be: the slot of `names` counts as stuck until it returns.
        """

        def release() -> None:
            if names is not None:
                self.slots.free(names)

        return await self.builds.build(
            self._build_anywhere(),
            limit_s=self.config.start_timeout,
            is_killable=self._launcher is not None,
            release=release,
        )

    async def _build_anywhere(self) -> Runner:
        try:
            if self._launcher is not None:
                return await self._launcher.build()
            return await self._build_here()
        except EnvTorchError:
            raise
        except Exception as error:
            raise self._not_made(error) from error

    async def _build_here(self) -> Runner:
        if self._need_threads:
            return await build(self._make, self.threads, known=self._known_class)
        async with self._builders:
            runner = await build(self._make, self.threads, known=self._known_class)
        assert runner.host is not None
        self._known_class = type(runner.host.environment)
        self._need_threads = not isinstance(runner, LoopRunner)
        return runner

    def _make(self) -> EnvironmentHost:
        try:
            environment = self.factory.make()
        except (ConfigurationError, FactoryFailed, MissingExtra):
            raise
        except EnvTorchError as error:  # raised by the author's code, it says nothing about this server
            raise self._not_made(error) from error
        self.factory.require_concurrency(type(environment), self.capacity)
        return EnvironmentHost(environment, self._codec)

    def _not_made(self, error: Exception) -> FactoryFailed:
        logger.error("environment factory %s failed", self.factory.name, exc_info=error)
        return FactoryFailed(
            f"Environment factory '{self.factory.name}' failed to create instance.",
            factory_name=self.factory.name,
            reason=str(error) or repr(error),
        )

    # The session of callers who never say who they are.

    async def anonymous(self) -> Session:
        """The one session that callers without an id share, on a server with room for one session."""
        if self._anonymous is not None and self._anonymous.id in self._live:
            return self._anonymous
        return await self._shared(ANONYMOUS, self._open_anonymous)

    async def _open_anonymous(self) -> Session:
        session = self._anonymous = await self.open(held=False)
        return session

    def claim(self, session: Session) -> None:
        """Its caller has shown the token: from now on the session is somebody's."""
        if self._anonymous is session:
            self._anonymous = None

    async def _evict_anonymous(self) -> None:
        """Nobody can be shown to want it, so it makes room for a caller who asks for a session."""
        session = self._anonymous
        if session is not None and session.is_idle and not self.factory.is_shared:
            logger.info("session %s: anonymous, closed to make room", session.id[:8])
            self._anonymous = None
            await session.close("it was anonymous, and made room")

    # Closing.

    async def release(self, session: Session, reason: str = "it was closed") -> None:
        """Whoever opened the session is done with it. A shared environment lives on."""
        if not self.factory.is_shared:
            await session.close(reason)

    def forget(self, session: Session) -> None:
        """The session is closed: its slot is free."""
        if self._live.pop(session.id, None) is not None:
            self._by_token.pop(session.token, None)
            self.slots.free(session.names)
        if self._anonymous is session:
            self._anonymous = None
        self._look_if_finished()

    @property
    def is_leaving(self) -> bool:
        """Whether the server was told to stop: it opens no session any more."""
        return self.finishing or self.draining

    async def finish(self, deadline_s: float) -> bool:
        """Begin no episode, tell whoever listens, and wait until the sessions that are open have ended.

        Their calls are made meanwhile, all but `reset`. Says whether all ended before the deadline.
        """
        self.finishing = True
        self._tell_listeners()
        self._look_if_finished()
        try:
            async with asyncio.timeout(deadline_s):
                await self._finished.wait()
        except TimeoutError:
            logger.warning("%d sessions are still open after %g s", len(self._live), deadline_s)
            return False
        return True

    def _opened(self, key: str) -> None:
        """A session was opened, or could not be."""
        del self._opening[key]
        self._look_if_finished()

    def _look_if_finished(self) -> None:
        if self.finishing and not self._live and not self._opening:
            self._finished.set()

    def _tell_listeners(self) -> None:
        for listener in list(self.drain_listeners):
            listener()

    async def drain(self, deadline_s: float) -> bool:
        """Take nothing new, tell whoever listens, and wait for the calls that run.

        Says whether they all ended before the deadline. Closing the sessions has what is left of it.
        """
        self.draining = True
        self.stop_at = asyncio.get_running_loop().time() + deadline_s
        if not self.finishing:
            self._tell_listeners()
        idle = asyncio.Event()
        self.meter.when_idle = idle.set
        try:
            async with asyncio.timeout_at(self.stop_at):
                if self.meter.running:
                    await idle.wait()
        except TimeoutError:
            logger.warning("%d calls still run at the drain deadline", self.meter.running)
            return False
        return True

    async def close(self) -> None:
        """End every session, and the environment that waits for one; give up on those that hang.

        What is left of the time to drain is also the time for this, and never less than a second.
        """
        self.draining = True
        now = asyncio.get_running_loop().time()
        left_s = CLOSE_S if self.stop_at is None else max(self.stop_at - now, SHORTEST_CLOSE_S)
        reason = "the server was stopped"
        live = list(self._live.values())
        closing: dict[asyncio.Future[None], Session | None] = {
            asyncio.ensure_future(session.close(reason)): session for session in live
        }
        closing[asyncio.ensure_future(self.questions.close())] = None
        _, hanging = await asyncio.wait(closing, timeout=left_s)
        for task in hanging:
            session = closing[task]
            what = "an unused environment" if session is None else f"{session.runner.name} ({session.id[:8]})"
            self.hanging.append(what)
            logger.warning("%s did not end in time, and ends with the server", what)
            task.cancel()  # its thread is a daemon: it ends with the process
        self.threads.close()
        if self._launcher is not None:
            await self._launcher.close()
        if self.recorder is not None:
            self.recorder.close()  # not in a thread: none can be started while Python ends
