"""The policy: prompts in, completions out, many at a time."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from envtorch.errors import PromptTooLong
from envtorch.llm import ToolCall
from envtorch.rollout.trajectories import ChatMessage
from envtorch.types import Tool

__all__ = ["BatchStatistics", "Batcher", "Completion", "Prompt", "RolloutPolicy", "TokenUsage", "linger"]

logger = logging.getLogger(__name__)

BLOCKED_S = 1.0
"""A call of the policy that blocks the event loop for so long is warned of."""
LINGER_SHARE = 0.1
"""How long a call waits for others, as a part of the time that the call before it took."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a policy completes."""

    messages: Sequence[ChatMessage]
    ids: Sequence[int] | None = None
    """The conversation as token ids, when the rollouts have a chat template. Complete these."""
    tools: Sequence[Tool] = ()
    """The tools that may be called."""


class TokenUsage(NamedTuple):
    """How many tokens one completion took."""

    prompt: int
    said: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy answered to one prompt."""

    text: str = ""
    """May be left out when `ids` are given."""
    ids: Sequence[int] = ()
    """The tokens it produced, the one that ended its turn included."""
    logprobs: Sequence[float | None] | None = None
    """The log-probability of each of `ids`; None for one that is not known."""
    tool_calls: Sequence[ToolCall] = ()
    version: int | None = None
    """The version of the weights that said it; `Rollouts.version` when the policy does not tell."""
    prompt_ids: Sequence[int] | None = None
    """What the policy made of the messages, when it has a chat template of its own and tells."""
    usage: TokenUsage | None = None
    """What it took, when the policy tells; else it is counted from the ids."""
    is_cut: bool = False
    """Whether it stopped at `max_tokens`, where the policy tells: what it meant to say is not all there."""
    refusal: PromptTooLong | None = None
    """Why there is no completion: set it, and nothing else, to end this episode alone. Its ending is
    `Ending.POLICY`, or `Ending.ENVIRONMENT` when it is the first prompt that is too long."""


RolloutPolicy = Callable[[Sequence[Prompt]], Awaitable[Sequence[Completion]]]
"""An async callable: a batch of prompts in, as many completions out, in the same order."""


@dataclass(slots=True)
class _Waiting:
    prompt: Prompt
    completion: "asyncio.Future[Completion]"


@dataclass(slots=True)
class BatchStatistics:
    """How full the policy's batches were."""

    sizes: list[int] = field(default_factory=list)
    """The number of prompts in each call."""
    busy_s: float = 0.0
    """Seconds that calls took, added up."""


def linger(shortest_s: float, *, last_call_s: float) -> float:
    """How long a call waits for others: a part of what calls take, so that it costs little in any case."""
    return max(shortest_s, LINGER_SHARE * last_call_s) if shortest_s else 0.0


class Batcher:
    """Collects prompts while the policy is busy, and gives it all of them in its next call.

    At most `calls` calls run at once. With one call, a local `generate` sees all that wait; with as many as
    there are rollouts, an endpoint is asked at once. Before a call starts, it waits up to `linger_s`, or a
    tenth of the time that the call before it took, for rollouts that are in a step or about to begin, unless
    all of them wait already.
    """

    def __init__(self, policy: RolloutPolicy, *, calls: int, size: int, linger_s: float) -> None:
        self._policy = policy
        self._calls = calls
        self._size = size
        self._linger_s = linger_s
        self._waiting: list[_Waiting] = []
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_parked = False
        self._last_call_s = 0.0
        self._has_warned = False
        self.version = 0
        """The version of the weights that complete prompts now."""
        self.players = 0
        """Rollouts that will ask for a completion, or are asking."""
        self.statistics = BatchStatistics()

    async def complete(self, prompt: Prompt) -> Completion:
        """The policy's completion of one prompt."""
        completion: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(prompt, completion))
        self._start()
        return await completion

    @contextmanager
    def joined(self, count: int = 1) -> Iterator[Callable[[], None]]:
        """Rollouts begin: calls may wait for them. Call what this gives when one of them is over."""
        playing = count
        self.players += count

        def leave() -> None:
            nonlocal playing
            playing -= 1
            self.players -= 1
            self._start()

        try:
            yield leave
        finally:
            self.players -= playing
            self._start()

    async def park(self) -> None:
        """Start no call until `resume`, and wait for those that run."""
        self._is_parked = True
        if self._running:
            await asyncio.wait(set(self._running))

    def resume(self, version: int | None = None) -> None:
        """Start calls again, with these weights."""
        self.version = self.version if version is None else version
        self._is_parked = False
        self._start()

    async def close(self) -> None:
        """Cancel the calls that run."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self._running:
            call.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self) -> None:
        """Start a call if there is reason to."""
        if self._is_parked or not self._waiting or len(self._running) >= self._calls:
            return
        is_full = len(self._waiting) >= min(self._size, self.players)
        if self._linger_s and not is_full:
            if self._timer is None:
                loop = asyncio.get_running_loop()
                linger_s = linger(self._linger_s, last_call_s=self._last_call_s)
                self._timer = loop.call_later(linger_s, self._start_now)
            return
        self._start_now()

    def _start_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Rollouts that were cancelled meanwhile want no completion.
        self._waiting = [waiting for waiting in self._waiting if not waiting.completion.done()]
        while self._waiting and len(self._running) < self._calls and not self._is_parked:
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            call = asyncio.get_running_loop().create_task(self._call(batch))
            self._running.add(call)
            call.add_done_callback(self._ended)

    def _ended(self, call: "asyncio.Task[None]") -> None:
        self._running.discard(call)
        self._start()

    async def _call(self, batch: list[_Waiting]) -> None:
        began = time.perf_counter()
        asyncio.get_running_loop().call_soon(self._warn_if_blocked, began)
        version = self.version
        try:
            answering = self._policy([waiting.prompt for waiting in batch])
            if not isinstance(answering, Awaitable):
                raise TypeError(
                    f"the policy returned {type(answering).__name__}, which cannot be awaited: write it as "
                    "`async def`, or use BlockingRollouts, whose policy is an ordinary function"
                )
            completions = await answering
            if not isinstance(completions, Sequence):
                raise TypeError(
                    f"the policy gave {type(completions).__name__}: it must give a list of Completions"
                )
            if len(completions) != len(batch):
                gave, asked = _counted(completions, "completion"), _counted(batch, "prompt")
                raise ValueError(f"the policy gave {gave} for {asked}: it must give one for each")
            for completion in completions:
                if not isinstance(completion, Completion):
                    raise TypeError(f"the policy gave {type(completion).__name__}: it must give Completions")
                if not isinstance(completion.text, str):
                    raise TypeError(
                        f"the policy gave a Completion whose text is {type(completion.text).__name__}"
                    )
        except asyncio.CancelledError:
            for waiting in batch:
                waiting.completion.cancel()
            raise
        except (
            Exception
        ) as error:  # the policy is the caller's: what it raises, every rollout that waits raises
            for waiting in batch:
                if not waiting.completion.done():
                    waiting.completion.set_exception(error)
            return
        self._last_call_s = time.perf_counter() - began
        self.statistics.busy_s += self._last_call_s
        self.statistics.sizes.append(len(batch))
        for waiting, completion in zip(batch, completions, strict=True):
            if not waiting.completion.done():
                told = completion if completion.version is not None else replace(completion, version=version)
                waiting.completion.set_result(told)

    def _warn_if_blocked(self, began: float) -> None:
        """Called as soon as the loop goes on after a call of the policy has begun."""
        blocked_s = time.perf_counter() - began
        if blocked_s >= BLOCKED_S and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the policy blocked the event loop for %.1f s, and every other rollout with it: write "
                "`await asyncio.to_thread(generate, prompts)`, or use BlockingRollouts, whose policy is an "
                "ordinary function",
                blocked_s,
            )


def _counted(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}" if len(things) == 1 else f"{len(things)} {name}s"
