"""A game for rollouts to play over real servers, and what plays it."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from envtorch import Action, ConcurrencyConfig, EnvClient, Environment, Observation, State
from envtorch.rollout import ChatMessage, Completion, Prompt
from envtorch.server import create_app
from envtorch.types import Tool
from tests.support import Running, running

SLEEP, RAISE = 90, 91
"""Numbers that make a step take for ever, and fail."""


class Press(Action):
    number: int


class Seen(Observation):
    hint: str = ""


class Dial(Environment[Press, Seen, State]):
    """A number from 0 to 9, by the seed, to be found with hints."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    loop: asyncio.AbstractEventLoop
    """The server's, on which sessions can be closed."""

    def __init__(self) -> None:
        self._secret = self._steps = 0

    async def reset_async(self, seed: int | None = None) -> Seen:
        Dial.loop = asyncio.get_running_loop()
        self._secret, self._steps = random.Random(seed).randrange(10), 0
        return Seen(hint=f"a number from 0 to 9, in game {seed}")

    async def step_async(self, action: Press) -> Seen:
        if action.number == SLEEP:
            await asyncio.sleep(600)
        if action.number == RAISE:
            raise ZeroDivisionError("the dial is stuck")
        self._steps += 1
        if action.number == self._secret:
            return Seen(hint="right", reward=1.0, done=True)
        hint = "higher" if action.number < self._secret else "lower"
        return Seen(hint=f"{hint} after {self._steps}", reward=-0.125)

    def reset(self, seed: int | None = None) -> Seen:
        raise NotImplementedError

    def step(self, action: Press) -> Seen:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State(step_count=self._steps)


class Riveted(Dial):
    """A dial that cannot be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Riveted":
        raise TypeError("a riveted dial cannot be copied")


class DialEnv(EnvClient[Press, Seen, State]): ...


@contextmanager
def dials(source: type[Dial] = Dial, *, room: int = 64) -> Iterator[Running]:
    """A server of dials."""
    config = ConcurrencyConfig(max_concurrent_envs=room, reconnect_grace=5)
    with running(create_app(source, Press, Seen, concurrency_config=config)) as server:
        yield server


async def lose(server: Running, place: int) -> None:
    """End one of the server's sessions behind its client's back."""
    sessions = server.sessions.all()
    if sessions:
        closing = sessions[place % len(sessions)].close("it was lost on purpose")
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, Dial.loop))


@dataclass
class Player:
    """A policy whose completion depends on its prompt alone. It remembers what it said to which prompt.

    `before` is called before each call, with its number.
    """

    choose: Callable[[Prompt], int]
    before: Callable[[int], Any] | None = None
    version: Callable[[], int] = int
    versions: dict[tuple[int, ...], set[int]] = field(default_factory=dict)
    """With which versions of the weights each prompt was completed."""
    said: dict[tuple[int, ...], Completion] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    async def __call__(self, prompts: Sequence[Prompt]) -> list[Completion]:
        self.sizes.append(len(prompts))
        version = self.version()
        for prompt in prompts:
            self.versions.setdefault(tuple(prompt.ids or ()), set()).add(version)
        if self.before is not None:
            await self.before(len(self.sizes))
        return [self._complete(prompt) for prompt in prompts]

    def _complete(self, prompt: Prompt) -> Completion:
        text = f'{{"number": {self.choose(prompt)}}}'
        if prompt.ids is None:
            return Completion(text)
        ids = [*LETTERS.encode(text), END]
        logprobs = [-(len(prompt.ids) + place / 64) for place in range(1, len(ids) + 1)]
        self.said[tuple(prompt.ids)] = completion = Completion(ids=ids, logprobs=logprobs)
        return completion


def upwards(prompt: Prompt) -> int:
    """0, then 1, then 2, ..."""
    return sum(message["role"] == "assistant" for message in prompt.messages)


def scattered(prompt: Prompt) -> int:
    """A number that the whole conversation decides."""
    return random.Random(str(prompt.messages)).randrange(10)


END = 0


class Letters:
    """A chat template whose tokens are letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def begin(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>")

    def between(self, said: Sequence[int], messages: Sequence[ChatMessage]) -> list[int]:
        end = [] if said and said[-1] == END else [END]
        return [*end, *self.begin(messages, ())]

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(id) for id in ids if id != END)


LETTERS = Letters()
