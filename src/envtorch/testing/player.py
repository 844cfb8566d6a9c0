"""Plays episodes on one environment object, in this process, and keeps what came back."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envtorch.env import Environment
from envtorch.protocol.binding import Binding
from envtorch.protocol.codec import Codec
from envtorch.protocol.encoding import encode_observation, encode_value
from envtorch.protocol.flow import settle
from envtorch.tasks import TaskSet

__all__ = ["CheckedPlayer", "read_field"]


def read_field(value: Any, name: str, default: Any = None) -> Any:
    """A field of an observation or a state, which a server also takes as a mapping."""
    return value.get(name, default) if isinstance(value, Mapping) else getattr(value, name, default)


class CheckedPlayer:
    """One environment, called as a server calls it."""

    def __init__(self, environment: Environment[Any, Any, Any], codec: Codec[Any, Any, Any]) -> None:
        self.environment = environment
        self.codec = codec
        self.binding = Binding.of(environment)
        self._reset = getattr(environment, self.binding.reset.attribute)
        self._step = getattr(environment, self.binding.step.attribute)
        self._loop: asyncio.AbstractEventLoop | None = None

    def reset(self, options: Mapping[str, Any]) -> Any:
        """The first observation; options that `reset` does not take are left out.

        An environment with a `TaskSet` is given a task by its id, and without one the first of them.
        """
        return self._settle(
            self._reset(**self.binding.reset.accepted(self._with_task(options), strict=False))
        )

    def _with_task(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        tasks = getattr(self.environment, "tasks", None)
        if not isinstance(tasks, TaskSet):
            return options
        given = options.get("task")
        task = next(iter(tasks), None) if given is None else tasks.find_task(given)
        return {**options, "task": task}

    def step(self, action: Any) -> Any:
        """The observation after an action."""
        return self._settle(self._step(action))

    def state(self) -> Any:
        return self._settle(state() if inspect.ismethod(state := self.environment.state) else state)

    def close(self) -> None:
        try:
            self._settle(self.environment.close())
        finally:
            if self._loop is not None:
                self._loop.close()

    def told(self, observation: Any, method: str) -> bytes:
        """What a client receives for an observation: two runs are compared by it.

        `method` is the one that returned it: an error names it.
        """
        encoded = encode_observation(observation, method=method, expected=self.codec.spec.observation)
        return b"%b|%r|%r" % (encoded.observation, repr(encoded.reward).encode(), encoded.done)

    def episode(
        self,
        options: Mapping[str, Any],
        actions: Sequence[Mapping[str, Any]],
        before_step: Callable[[], None] = lambda: None,
    ) -> list[bytes]:
        """Everything a client is told in one episode."""
        told = [self.told(self.reset(options), "reset")]
        for action in actions:
            before_step()
            observation = self.step(self.codec.decode_action(action))
            told.append(self.told(observation, "step"))
            if read_field(observation, "done", False):
                break
        return [*told, encode_value(self.state())]

    def _settle(self, value: Any) -> Any:
        if not (asyncio.iscoroutine(value) or hasattr(value, "__await__")):
            return value
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(settle(value))
