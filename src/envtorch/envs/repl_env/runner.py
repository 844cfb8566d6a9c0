"""`RLMRunner`: drives a model over the REPL environment to a final answer."""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envtorch.envs.repl_env.agent import Agent, Step
from envtorch.envs.repl_env.budgets import Budget, Spending
from envtorch.envs.repl_env.client import AsyncREPLEnv
from envtorch.envs.repl_env.environment import REPLEnvironment
from envtorch.envs.repl_env.episode import Rules
from envtorch.envs.repl_env.events import Began, Ended, Event, Observer
from envtorch.envs.repl_env.language_models import LanguageModel
from envtorch.envs.repl_env.model_calls import ModelCalls, Retries
from envtorch.envs.repl_env.trajectory import RecordedModel, TrajectoryWriter, read_trajectory
from envtorch.errors import EnvTorchError
from envtorch.sandbox import Policy

__all__ = ["RLMResult", "RLMRunner"]

ROOT = "0"


@dataclass(frozen=True, slots=True)
class RLMResult:
    """How a run ended. `answer` is None when there is none, and `reason` says why."""

    answer: str | None
    reason: str
    turns: int
    reward: float | None
    usage: dict[str, Any]


class _Root:
    """The environment, as the root agent's place to run code."""

    def __init__(self, env: AsyncREPLEnv) -> None:
        self._env = env
        self.reward: float | None = None

    async def execute(self, code: str) -> Step:
        result = await self._env.execute(code)
        self.reward = result.reward
        seen = result.observation
        final = seen.metadata.get("final_answer")
        return Step(seen.result, seen.available_variables, result.done, final)


class RLMRunner:
    """A recursive language model: a model, a REPL, and the loop between them.

        runner = RLMRunner(OpenAICompatible("http://127.0.0.1:8000/v1", "my-model"))
        result = runner.run("How often is the whale named?", context=book)

    `trajectory` names a file for everything that happens; `show=True` draws the tree of agents in the
    terminal while it grows. `env` is a server's environment to play on; without one the environment runs in
    this process. The budget is one for the root and all its children; what a server's own model spends is
    the server's.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        budget: Budget | None = None,
        max_iterations: int = 30,
        rules: Rules | None = None,
        policy: Policy | None = None,
        retries: Retries | None = None,
        trajectory: Path | str | None = None,
        show: bool = False,
        observer: Observer | None = None,
        env: Callable[[], AsyncREPLEnv] | None = None,
    ) -> None:
        self._model = model
        self._budget = budget or Budget()
        self._max_iterations = max_iterations
        self._rules = rules or Rules()
        self._policy = policy
        self._retries = retries or Retries()
        self._trajectory = trajectory
        self._show = show
        self._observer = observer
        self._env = env

    @classmethod
    def replaying(cls, recorded: Path | str, **options: Any) -> "RLMRunner":
        """A runner whose model says again what was recorded. It raises `ReplayDiverged` where it cannot."""
        return cls(RecordedModel(list(read_trajectory(recorded))), **options)

    def run(self, task: str, *, context: str = "", seed: int | None = None) -> RLMResult:
        """`run_async`, blocking."""
        return asyncio.run(self.run_async(task, context=context, seed=seed))

    async def run_async(self, task: str, *, context: str = "", seed: int | None = None) -> RLMResult:
        """Work on `task` until there is an answer, or nothing left to spend."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._model.close)
            observers: list[Observer] = [self._observer] if self._observer is not None else []
            if self._trajectory is not None:
                observers.append(stack.enter_context(TrajectoryWriter(self._trajectory)))
            if self._show:
                from envtorch.envs.repl_env.view import TreeView

                observers.append(stack.enter_context(TreeView()))
            return await self._play(task, context, seed, _Broadcast(observers))

    async def _play(self, task: str, context: str, seed: int | None, observer: Observer) -> RLMResult:
        spending = Spending(self._budget)
        model_calls = ModelCalls(self._model, spending, self._retries, observer=observer)
        env = self._env() if self._env is not None else self._local(spending, model_calls, observer)
        async with env:
            digest = hashlib.sha256(context.encode("utf-8", "replace")).hexdigest()
            observer(Began(ROOT, task, len(context), digest))
            # The last iteration of an episode runs nothing, so one more than there are turns to take.
            blocks = self._max_iterations * 8 + 1
            await env.reset(context=context, task_prompt=task, seed=seed, max_iterations=blocks)
            place = _Root(env)
            agent = Agent(
                lambda messages: model_calls.converse(ROOT, messages),
                place,
                self._max_iterations,
                self._rules.max_output_length,
            )
            try:
                ended = await agent.work(task, context_length=len(context))
                self._require_the_record()
            except EnvTorchError as error:
                observer(Ended(ROOT, None, error.message, spending.usage()))
                raise
            if ended.reason == "out of turns" and ended.answer is not None:
                place.reward = (await env.submit_final_answer(ended.answer)).reward
            observer(Ended(ROOT, ended.answer, ended.reason, spending.usage()))
        return RLMResult(ended.answer, ended.reason, ended.turns, place.reward, spending.usage())

    def _require_the_record(self) -> None:
        """A replay that went another way has no answer, even where the agents' code went on."""
        if isinstance(self._model, RecordedModel) and self._model.diverged:
            raise self._model.diverged[0]

    def _local(self, spending: Spending, model_calls: ModelCalls, observer: Observer) -> AsyncREPLEnv:
        return AsyncREPLEnv.local(
            lambda: REPLEnvironment(
                model=self._model,
                model_calls=model_calls,
                rules=self._rules,
                policy=self._policy,
                observer=observer,
            )
        )


class _Broadcast:
    """Tells every observer."""

    def __init__(self, observers: list[Observer]) -> None:
        self._observers = observers

    def __call__(self, event: Event) -> None:
        for observer in self._observers:
            observer(event)
