"""What is being checked: how to build it, how to play it."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from envtorch.env import Environment
from envtorch.protocol.codec import Codec
from envtorch.testing.player import CheckedPlayer
from envtorch.testing.sampling import sample
from envtorch.tools import CallToolAction, ListToolsAction

__all__ = ["Subject"]


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment under examination."""

    name: str
    make: Callable[[], Environment[Any, Any, Any]]
    codec: Codec[Any, Any, Any]
    actions: Sequence[Mapping[str, Any]]
    """An episode's worth, each as a client would send it."""
    options: Mapping[str, Any]
    """What every `reset` is given besides the seed."""
    seed: int
    reward_range: tuple[float, float] | None

    @contextmanager
    def player(self) -> Iterator[CheckedPlayer]:
        """A fresh environment, closed at the end of the block."""
        player = CheckedPlayer(self.make(), self.codec)
        try:
            yield player
        finally:
            player.close()

    def reset_options(self, **extra: Any) -> dict[str, Any]:
        return {"seed": self.seed, "episode_id": "check", **self.options, **extra}

    @property
    def promises_concurrency(self) -> bool:
        with self.player() as player:
            return player.environment.SUPPORTS_CONCURRENT_SESSIONS


def made_up_actions(
    make: Callable[[], Environment[Any, Any, Any]], codec: Codec[Any, Any, Any], steps: int, seed: int
) -> list[dict[str, Any]]:
    """Actions that fit the environment's schema, or that call its tools."""
    rng = random.Random(seed)  # noqa: S311, examples need no secrecy
    if codec.takes_tool_actions:
        return _tool_calls(make, codec, steps, rng)
    schema = codec.schemas()["action"]
    return [sample(schema, rng) for _ in range(steps)]


def _tool_calls(
    make: Callable[[], Environment[Any, Any, Any]],
    codec: Codec[Any, Any, Any],
    steps: int,
    rng: random.Random,
) -> list[dict[str, Any]]:
    player = CheckedPlayer(make(), codec)
    try:
        player.reset({})
        tools = player.step(ListToolsAction()).tools
    finally:
        player.close()
    chosen = [rng.choice(tools) for _ in range(steps)] if tools else []
    calls = [CallToolAction(tool_name=t.name, arguments=sample(t.input_schema, rng) or {}) for t in chosen]
    return [call.model_dump() for call in calls] or [{"type": "list_tools"}]
