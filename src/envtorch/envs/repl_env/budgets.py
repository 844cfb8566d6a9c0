"""What a tree of agents may spend, and what it has spent: one account for the root and all its children."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from envtorch.errors import ConfigurationError, EnvTorchError

__all__ = ["Budget", "BudgetSpent", "Spending"]


class BudgetSpent(EnvTorchError):
    """The tree has used up what it may use. The message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one episode, with every child agent in it, may use. None is no limit."""

    calls: int | None = 1000
    """Requests to language models; one that is retried is still one."""
    tokens: int | None = None
    """Prompt and completion together. Where a model does not count them, four characters are one."""
    time_s: float | None = None
    """From the reset on."""
    depth: int = 2
    """How many generations of children there may be; at the last, `rlm_query` is a plain `llm_query`."""
    children: int = 64
    """Child agents, over the whole episode."""
    child_iterations: int = 10
    """Turns of each child."""
    concurrency: int = 8
    """Requests to language models at the same time."""

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.depth < 0 or self.child_iterations < 1 or self.children < 0:
            raise ConfigurationError(f"this budget allows nothing at all: {self}")


@dataclass(slots=True)
class Spending:
    """What has been spent of a budget."""

    budget: Budget = field(default_factory=Budget)
    clock: Callable[[], float] = time.monotonic
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: int = 0
    retries: int = 0
    children: int = 0
    began: float = field(init=False)
    deadline: float | None = field(default=None, init=False)
    """When the step that runs now must have ended, on `clock`."""
    turns: asyncio.Semaphore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.began = self.clock()
        self.turns = asyncio.Semaphore(self.budget.concurrency)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def allowed_calls(self, count: int) -> tuple[int, str]:
        """How many of `count` further requests the budget of calls allows, and why not more."""
        most = self.budget.calls
        if most is None or self.calls + count <= most:
            return count, ""
        return max(0, most - self.calls), f"the episode's {most} calls of language models are spent"

    def take_call(self) -> None:
        """Spend one request. Raises `BudgetSpent`."""
        self.require_time()
        budget = self.budget
        if budget.calls is not None and self.calls >= budget.calls:
            raise BudgetSpent(f"the episode's {budget.calls} calls of language models are spent")
        if budget.tokens is not None and self.tokens >= budget.tokens:
            raise BudgetSpent(f"the episode's {budget.tokens} tokens are spent")
        self.calls += 1

    def take_children(self, count: int) -> None:
        """Spend child agents, all or none. Raises `BudgetSpent`."""
        self.require_time()
        left = self.budget.children - self.children
        if count > left:
            raise BudgetSpent(f"{count} child agents are asked for, and the budget has {max(0, left)} left")
        self.children += count

    def left_s(self) -> float | None:
        """Seconds until the episode's or the step's time is over, whichever is first; None without either."""
        now = self.clock()
        ends = [self.deadline] if self.deadline is not None else []
        if self.budget.time_s is not None:
            ends.append(self.began + self.budget.time_s)
        return min(ends) - now if ends else None

    def require_time(self) -> None:
        left = self.left_s()
        if left is not None and left <= 0:
            raise BudgetSpent("the time for it is over")

    @contextmanager
    def until(self, timeout_s: float | None) -> Iterator[None]:
        """Keep everything in the block within `timeout_s`."""
        before = self.deadline
        if timeout_s is not None:
            mine = self.clock() + timeout_s
            self.deadline = mine if before is None else min(mine, before)
        try:
            yield
        finally:
            self.deadline = before

    def usage(self) -> dict[str, Any]:
        """What has been spent, as observations tell it."""
        return {
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "failures": self.failures,
            "retries": self.retries,
            "children": self.children,
        }

    def copy(self) -> "Spending":
        """The same spending, to go on from separately, as a forked session does."""
        twin = Spending(self.budget, self.clock)
        for name in (
            "calls",
            "prompt_tokens",
            "completion_tokens",
            "failures",
            "retries",
            "children",
            "began",
        ):
            setattr(twin, name, getattr(self, name))
        return twin
