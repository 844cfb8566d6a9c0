"""The environments that are measured, written once, on the base classes of either framework."""

import asyncio
import time
from typing import Any, NamedTuple


class Served(NamedTuple):
    """An environment, and the classes of what travels."""

    environment: type
    action: type
    observation: type


def echo(base: Any, colour: str, module: str | None = None) -> Served:
    """Says what it hears. `base` has the framework's Action, Observation, State and Environment.

    With a `module` the classes say that they are at its top, for whoever loads them by name.
    """

    class Say(base.Action):  # type: ignore[misc]
        message: str
        wait_s: float = 0.0
        size: int = 0

    class Said(base.Observation):  # type: ignore[misc]
        message: str = ""

    class Echo(base.Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True
        BLOCKING = colour != "inline"

        def __init__(self) -> None:
            super().__init__()
            self._state = base.State()

        def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Any:
            self._state = base.State()
            return Said(message="ready")

        def step(self, action: Any, timeout_s: Any = None, **kwargs: Any) -> Any:
            if action.wait_s:
                time.sleep(action.wait_s)
            return self._answer(action)

        def _answer(self, action: Any) -> Any:
            self._state.step_count += 1
            return Said(message="x" * action.size if action.size else action.message, reward=1.0)

        @property
        def state(self) -> Any:
            return self._state

    class AsyncEcho(Echo):
        async def reset_async(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Any:
            return self.reset()

        async def step_async(self, action: Any, timeout_s: Any = None, **kwargs: Any) -> Any:
            if action.wait_s:
                await asyncio.sleep(action.wait_s)
            return self._answer(action)

    served = Served(AsyncEcho if colour == "async" else Echo, Say, Said)
    if module is not None:
        for each in served:
            each.__module__, each.__qualname__ = module, each.__name__
    return served


def together(base: Any) -> Served:
    """The echo again, of an author who also wrote how many of them step at once.

    It is one class for both frameworks: where nobody asks for `step_many`, it is a method more. It counts in
    a number of its own, so that its `step` does less than the plain echo's, and makes a state when asked.
    """
    _, say, said = echo(base, "async")

    class EchoTogether(base.Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Any:
            self.steps = 0
            return said(message="ready")

        async def reset_async(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Any:
            return self.reset()

        def step(self, action: Any, timeout_s: Any = None, **kwargs: Any) -> Any:
            if action.wait_s:
                time.sleep(action.wait_s)
            return self._answer(action)

        async def step_async(self, action: Any, timeout_s: Any = None, **kwargs: Any) -> Any:
            if action.wait_s:
                await asyncio.sleep(action.wait_s)
            return self._answer(action)

        def _answer(self, action: Any) -> Any:
            self.steps += 1
            return said(message="x" * action.size if action.size else action.message, reward=1.0)

        @classmethod
        def step_many(cls, environments: Any, actions: Any) -> Any:
            if any(actions.column("wait_s")):
                time.sleep(max(actions.column("wait_s")))
            for environment in environments:
                environment.steps += 1
            messages = actions.column("message")
            if any(actions.column("size")):
                sizes = actions.column("size")
                messages = ["x" * size if size else m for m, size in zip(messages, sizes, strict=True)]
            return {"message": messages, "reward": [1.0] * len(environments)}

        @property
        def state(self) -> Any:
            return base.State(step_count=self.steps)

    return Served(EchoTogether, say, said)


PICTURE = (84, 84, 4)


def pictures(base: Any, *, as_lists: bool) -> Served:
    """Shows a picture, 28 kB of bytes: as an array, or as lists where a framework cannot send arrays."""
    import numpy

    class Look(base.Action):  # type: ignore[misc]
        message: str = ""
        size: int = 0

    class Seen(base.Observation):  # type: ignore[misc]
        picture: Any = None

    class Pictures(base.Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._picture = numpy.arange(numpy.prod(PICTURE), dtype=numpy.uint8).reshape(PICTURE)
            self._state = base.State()

        def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Any:
            return Seen()

        def step(self, action: Any, timeout_s: Any = None, **kwargs: Any) -> Any:
            self._picture += 1
            return Seen(picture=self._picture.tolist() if as_lists else self._picture, reward=1.0)

        @property
        def state(self) -> Any:
            return self._state

    return Served(Pictures, Look, Seen)
