"""All the sessions of one server: how many there may be, where they come from, when they end."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from envtorch.env import Environment, EnvironmentSource, load_object
from envtorch.errors import (
    CapacityReached,
    ConfigurationError,
    EnvTorchError,
    FactoryFailed,
    SessionLost,
)
from envtorch.protocol.codec import Codec
from envtorch.protocol.host import EnvironmentHost
from envtorch.server.runner import Runner, build
from envtorch.server.session import Session
from envtorch.types import ConcurrencyConfig, ServerCapacityStatus

__all__ = ["Factory", "Sessions"]

logger = logging.getLogger(__name__)

UNHELD_LEASE_S = 900.0
"""How long a session lives that no socket holds, when nobody said otherwise."""


@dataclass(frozen=True, slots=True)
class Factory:
    """Where environments come from, and what is known of them before the first one is built."""

    make: Callable[[], Environment[Any, Any, Any]]
    name: str
    environment_class: type[Environment[Any, Any, Any]] | None = None
    is_shared: bool = False
    """There is one environment, somebody else's, and every session uses it."""

    @classmethod
    def of(cls, source: EnvironmentSource) -> "Factory":
        if isinstance(source, str):
            return cls.of(load_object(source))
        if isinstance(source, Environment):
            return cls(lambda: source, type(source).__name__, type(source), is_shared=True)
        if not callable(source):
            raise ConfigurationError(
                f"{type(source).__name__} is no environment: pass an Environment class, a function "
                "that returns one, an instance, or 'module:name'"
            )
        inner: Any = source
        while isinstance(inner, partial):
            inner = inner.func
        name = getattr(inner, "__name__", type(inner).__name__)
        known = inner if isinstance(inner, type) and issubclass(inner, Environment) else None
        return cls(source, name, known)

    def require_concurrency(self, environment: type, capacity: int) -> None:
        """Refuse several environments side by side where their author did not promise that it works."""
        if capacity > 1 and not self.is_shared and not environment.SUPPORTS_CONCURRENT_SESSIONS:  # type: ignore[attr-defined]
            raise ConfigurationError(
                f"{environment.__name__} does not say that several of it can live in one process, so "
                f"max_concurrent_envs={capacity} is refused; set SUPPORTS_CONCURRENT_SESSIONS = True "
                "on the class if it keeps nothing global",
                environment_name=environment.__name__,
                max_concurrent_envs=capacity,
            )


@dataclass(frozen=True, slots=True)
class _Spare:
    """An environment that was built to answer a question about it, kept for the next session."""

    host: EnvironmentHost
    runner: Runner


class Sessions:
    """Opens sessions while there is room, finds them by id, and frees a slot when, and only when, its
    session closes."""

    def __init__(self, factory: Factory, codec: Codec[Any, Any, Any], config: ConcurrencyConfig) -> None:
        self.factory = factory
        self.config = config
        self._codec = codec
        self._live: dict[str, Session] = {}
        self._opening = 0
        self._spare: _Spare | None = None
        self._spare_turn = asyncio.Lock()
        self._known_class = factory.environment_class
        self._anonymous: Session | None = None
        if self._known_class is not None:
            factory.require_concurrency(self._known_class, config.max_concurrent_envs)

    # Looking.

    @property
    def capacity(self) -> int:
        return self.config.max_concurrent_envs

    @property
    def active(self) -> int:
        return len(self._live) + self._opening

    def status(self) -> ServerCapacityStatus:
        return ServerCapacityStatus.from_counts(self.active, max(self.capacity, self.active))

    def find(self, session_id: str) -> Session | None:
        return self._live.get(session_id)

    def get(self, session_id: str) -> Session:
        """The session of that id. Raises `SessionLost` when there is none, or no longer."""
        session = self._live.get(session_id)
        if session is None:
            raise SessionLost(f"Unknown session_id: {session_id}")
        return session

    async def spare(self) -> EnvironmentHost:
        """A live environment to ask about metadata, schema or health. Raises `FactoryFailed`.

        Nothing is built for the question alone: a session's environment will do, else one is built
        and kept for the next session.
        """
        async with self._spare_turn:
            if self._spare is None:
                if self._live:
                    return next(iter(self._live.values())).host
                self._spare = _Spare(*await self._build())
            return self._spare.host

    async def ask(self, question: Callable[[EnvironmentHost], Any]) -> Any:
        """What a flow of some live environment comes to."""
        host = await self.spare()
        spare = self._spare
        if spare is not None and spare.host is host:
            return await spare.runner.run(question(host))
        session = next((s for s in self._live.values() if s.host is host), None)
        if session is None:
            return await self.ask(question)  # it closed in between
        return await session.run(question(host))

    # Opening.

    async def open(self, *, held: bool) -> Session:
        """A new session. `held` by a socket it needs no lease; otherwise it has one.

        Raises `CapacityReached` when every slot is taken, `FactoryFailed` when the environment cannot
        be built.
        """
        if self.factory.is_shared and self._live:
            return next(iter(self._live.values()))
        if self.active >= self.capacity:
            await self._evict_anonymous()
        if self.active >= self.capacity:
            raise CapacityReached.of(self.active, self.capacity)
        self._opening += 1
        try:
            async with self._spare_turn:
                spare, self._spare = self._spare, None
            host, runner = (spare.host, spare.runner) if spare else await self._build()
        finally:
            self._opening -= 1
        lease_s = None if held or self.factory.is_shared else self.lease_s
        session = Session(host, runner, lease_s=lease_s, on_close=self._forget)
        if held and not self.factory.is_shared:
            session.attach()
        self._live[session.id] = session
        logger.debug("session %s opened, %d of %d", session.id[:8], self.active, self.capacity)
        return session

    @property
    def lease_s(self) -> float:
        return self.config.session_timeout or UNHELD_LEASE_S

    async def _build(self) -> tuple[EnvironmentHost, Runner]:
        try:
            host, runner = await build(self._make, known=self._known_class)
        except EnvTorchError:
            raise
        except (Exception, SystemExit) as error:
            logger.exception("environment factory %s failed", self.factory.name)
            raise FactoryFailed(
                f"Environment factory '{self.factory.name}' failed to create instance.",
                factory_name=self.factory.name,
                reason=str(error) or repr(error),
            ) from error
        self._known_class = type(host.environment)
        return host, runner

    def _make(self) -> EnvironmentHost:
        environment = self.factory.make()
        self.factory.require_concurrency(type(environment), self.capacity)
        return EnvironmentHost(environment, self._codec)

    # The session of callers who never say who they are.

    async def anonymous(self) -> Session:
        """The one session that callers without an id share, on a server with room for one session."""
        if self._anonymous is None or self._anonymous.id not in self._live:
            self._anonymous = await self.open(held=False)
        return self._anonymous

    def claim(self, session: Session) -> None:
        """Its caller has shown the id: from now on the session is somebody's."""
        if self._anonymous is session:
            self._anonymous = None

    async def _evict_anonymous(self) -> None:
        """Nobody can be shown to want it, so it makes room for a caller who asks for a session."""
        session = self._anonymous
        if session is not None and session.is_idle and not self.factory.is_shared:
            logger.info("session %s: anonymous, closed to make room", session.id[:8])
            self._anonymous = None
            await session.close()

    # Closing.

    async def release(self, session: Session) -> None:
        """Whoever opened the session is done with it. A shared environment lives on."""
        if not self.factory.is_shared:
            await session.close()

    def _forget(self, session: Session) -> None:
        self._live.pop(session.id, None)
        if self._anonymous is session:
            self._anonymous = None

    async def close(self) -> None:
        """End every session, and the environment that waits for one."""
        async with self._spare_turn:
            spare, self._spare = self._spare, None
        if spare is not None:
            await spare.runner.run(spare.host.close())
            await spare.runner.close()
        await asyncio.gather(*(session.close() for session in list(self._live.values())))
