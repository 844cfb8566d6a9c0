"""A policy that is an actor of a cluster, such as a model on a GPU of another node."""

from collections.abc import Sequence
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.rollout.completions import Completion, Prompt

__all__ = ["ActorPolicy"]


class ActorPolicy:
    """Asks a Ray actor: `ActorPolicy(handle)` calls its method `complete` with a batch of prompts.

    It can be pickled, so that every driver of `Rollouts(..., on="ray")` asks the same actor. Each driver
    makes `calls` calls at once: with 1, its whole batch waits while the actor is busy with one.
    """

    def __init__(self, actor: Any, *, method: str = "complete", calls: int = 1) -> None:
        if not hasattr(getattr(actor, method, None), "remote"):
            raise ConfigurationError(
                f"{type(actor).__name__} has no actor method {method!r}: give the handle that `.remote()` "
                "of an actor class returned, and `method=` if it is not `complete`"
            )
        self._actor = actor
        self._method = method
        self.calls = calls

    async def __call__(self, prompts: Sequence[Prompt]) -> Sequence[Completion]:
        completions: Sequence[Completion] = await getattr(self._actor, self._method).remote(list(prompts))
        return completions
