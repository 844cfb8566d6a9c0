"""Load on a server: sessions on one event loop, each stepping as fast as it is answered."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from envtorch.cli.serving import action_schema_at
from envtorch.client import AsyncEnvClient, GenericEnvClient
from envtorch.errors import EnvTorchError, InvalidAction
from envtorch.testing.sampling import sample

__all__ = ["Load", "Measured", "measure"]

VARIETY = 64
"""How many actions are made up, to be taken in turn."""


@dataclass(frozen=True, slots=True)
class Load:
    """What every session does."""

    url: str
    token: str | None
    wire: Any
    actions: list[dict[str, Any]]
    seed: int

    @classmethod
    def of(
        cls, url: str, *, token: str | None, wire: str, action: dict[str, Any] | None, seed: int
    ) -> "Load":
        """With the one action that is given, or with actions made up from the server's schema."""
        if action is not None:
            return cls(url, token, wire, [action], seed)
        schema = action_schema_at(url, token)
        rng = random.Random(seed)  # noqa: S311, examples need no secrecy
        return cls(url, token, wire, [sample(schema, rng) or {} for _ in range(VARIETY)], seed)


@dataclass(slots=True)
class Measured:
    """What came of one run."""

    sessions: int
    seconds: float = 0.0
    episodes: int = 0
    failed: int = 0
    first_failure: str | None = None
    latencies: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.latencies)

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def p50_s(self) -> float:
        return self._quantile(0.50)

    @property
    def p99_s(self) -> float:
        return self._quantile(0.99)

    def _quantile(self, part: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else 0.0

    @property
    def told(self) -> dict[str, Any]:
        return {
            "sessions": self.sessions,
            "seconds": round(self.seconds, 4),
            "steps": self.steps,
            "episodes": self.episodes,
            "failed": self.failed,
            "first_failure": self.first_failure,
            "steps_per_s": round(self.steps_per_s, 1),
            "p50_ms": round(self.p50_s * 1000, 4),
            "p99_ms": round(self.p99_s * 1000, 4),
        }


def measure(
    load: Load, sessions: int, seconds: float, on_progress: Callable[[float], None] = lambda now: None
) -> Measured:
    """Step for so long in so many sessions. They are opened, and have begun, before the clock starts."""
    return asyncio.run(_measure(load, sessions, seconds, on_progress))


async def _measure(
    load: Load, sessions: int, seconds: float, on_progress: Callable[[float], None]
) -> Measured:
    outcome = Measured(sessions)
    clients = [
        GenericEnvClient.aio(load.url, token=load.token, wire=load.wire, wait_s=10.0, message_timeout_s=300)
        for _ in range(sessions)
    ]
    try:
        for client in clients:
            await _begin(client, load.seed)
        began = time.perf_counter()
        ticking = asyncio.create_task(_tick(began, on_progress))
        deadline = began + seconds
        await asyncio.gather(*(_play(client, load, i, deadline, outcome) for i, client in enumerate(clients)))
        outcome.seconds = time.perf_counter() - began
        ticking.cancel()
    finally:
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
    return outcome


async def _play(
    client: "AsyncEnvClient[Any, Any, Any]", load: Load, offset: int, deadline: float, outcome: Measured
) -> None:
    turn = offset
    while time.perf_counter() < deadline:
        action = load.actions[turn % len(load.actions)]
        turn += 1
        began = time.perf_counter()
        try:
            result = await client.step(action)
        except EnvTorchError as error:
            outcome.failed += 1
            outcome.first_failure = outcome.first_failure or f"{type(error).__name__}: {error}"
            if error.code not in ("VALIDATION_ERROR", "EXECUTION_ERROR"):
                return  # the session is gone
            continue
        outcome.latencies.append(time.perf_counter() - began)
        if result.done:
            outcome.episodes += 1
            await _begin(client, load.seed + turn)


async def _begin(client: "AsyncEnvClient[Any, Any, Any]", seed: int) -> None:
    try:
        await client.reset(seed=seed)
    except InvalidAction:  # it takes no seed
        await client.reset()


async def _tick(began: float, on_progress: Callable[[float], None]) -> None:
    while True:
        on_progress(time.perf_counter() - began)
        await asyncio.sleep(0.1)
