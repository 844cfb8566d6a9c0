"""Child agents: each is a fork of its parent's interpreter, and all share one budget."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from envtorch.envs.repl_env.agent import Agent, Answered, Step
from envtorch.envs.repl_env.budgets import BudgetSpent
from envtorch.envs.repl_env.events import Began, Ended, Forked, Observer, Ran, ignore
from envtorch.envs.repl_env.language_models import OpenAICompatible
from envtorch.envs.repl_env.model_calls import ModelCalls
from envtorch.envs.repl_env.notebook import Block, Function, Notebook, cut
from envtorch.errors import EnvTorchError
from envtorch.sandbox import Policy

__all__ = ["Node", "ran"]


def ran(node: str, code: str, block: Block) -> Ran:
    """A block that was run, as an event."""
    result = block.result
    return Ran(node, code, result.stdout, result.stderr, result.success, result.execution_time, block.final)


@dataclass(slots=True)
class Node:
    """One agent of the tree, as its sandbox's owner sees it: what its code may call, and its children."""

    model_calls: ModelCalls
    policy: Policy
    name: str = "0"
    depth: int = 0
    observer: Observer = ignore
    output_limit: int = 8192
    notebook: Notebook | None = None
    _children: int = field(default=0)

    def functions(self) -> dict[str, Function]:
        """What the code of this agent may call of ours."""
        return {
            "llm_query": self.llm_query,
            "llm_query_batched": self.llm_query_batched,
            "llm_batch": self.llm_query_batched,
            "_repl_recurse": self.recurse,
        }

    async def llm_query(self, prompt: str, model: str | None = None) -> str:
        return await self.model_calls.query(self.name, str(prompt), model)

    async def llm_query_batched(self, prompts: list[Any], model: str | None = None) -> list[str]:
        _require_list("prompts", prompts)
        return await self.model_calls.query_all(self.name, [str(prompt) for prompt in prompts], model)

    async def recurse(
        self, prompts: list[str], contexts: list[str | None] | None, model: str | None = None
    ) -> list[str]:
        """One child for each prompt, at the same time. `contexts` is None when the children are to be forks,
        and find theirs in their memory."""
        _require_list("prompts", prompts)
        if contexts is not None:
            _require_list("contexts", contexts)
            if len(contexts) != len(prompts):
                raise ValueError(f"there are {len(prompts)} prompts and {len(contexts)} contexts")
        if self.depth >= self.model_calls.spending.budget.depth:
            with_context = [
                _with(p, c) for p, c in zip(prompts, contexts or [None] * len(prompts), strict=True)
            ]
            return await self.model_calls.query_all(self.name, with_context, model)
        if not prompts:
            return []
        try:
            self.model_calls.spending.take_children(len(prompts))
        except BudgetSpent as error:
            return [f"Error: {error.message}"] * len(prompts)
        children = [self._child() for _ in prompts]
        began = time.monotonic()
        try:
            await (self._fork(children) if contexts is None else self._open(children, contexts))
            how: Literal["fork", "fresh"] = "fork" if contexts is None else "fresh"
            names = [child.name for child in children]
            self.observer(Forked(self.name, names, how, time.monotonic() - began))
            work = (
                child.work(p, contexts is None, model) for child, p in zip(children, prompts, strict=True)
            )
            return list(await asyncio.gather(*work))
        except EnvTorchError as error:
            return [f"Error: {error.message}"] * len(prompts)
        finally:
            await asyncio.gather(*(child.close() for child in children))

    def _child(self) -> "Node":
        self._children += 1
        name = f"{self.name}.{self._children}"
        return Node(self.model_calls, self.policy, name, self.depth + 1, self.observer, self.output_limit)

    async def _fork(self, children: "list[Node]") -> None:
        assert self.notebook is not None
        made = await self.notebook.fork(len(children))
        for number, (child, notebook) in enumerate(zip(children, made, strict=True)):
            notebook.become_child(number, child.functions())
            child.notebook = notebook

    async def _open(self, children: "list[Node]", contexts: list[str | None]) -> None:
        for child, context in zip(children, contexts, strict=True):
            child.notebook = await Notebook.open(child.policy, child.functions(), context=context)

    async def work(self, task: str, inherited: bool, model: str | None) -> str:
        """The child's answer, or a sentence that says why there is none."""
        self.observer(Began(self.name, task, inherited=inherited))

        async def converse(messages: list[dict[str, str]]) -> str:
            return await self.model_calls.converse(self.name, messages, model)

        budget = self.model_calls.spending.budget
        agent = Agent(converse, self, budget.child_iterations, self.output_limit)
        try:
            ended = await agent.work(task, context_length=None)
        except EnvTorchError as error:
            ended = Answered(None, error.message, 0)
        self.observer(Ended(self.name, ended.answer, ended.reason))
        return ended.answer if ended.answer is not None else f"Error: {ended.reason}"

    async def execute(self, code: str) -> Step:
        """Run a block in this agent's own notebook."""
        assert self.notebook is not None
        block = await self.notebook.run(code, timeout_s=self._limit_s())
        self.observer(ran(self.name, code, block))
        done = block.final is not None or not block.alive
        return Step(block.result, self.notebook.seen.variables, done, block.final)

    def _limit_s(self) -> float:
        left_s = self.model_calls.spending.left_s()
        if left_s is not None and left_s <= 0:
            raise BudgetSpent("the time for it is over")
        return self.policy.timeout_s if left_s is None else min(self.policy.timeout_s, left_s)

    async def twin(self) -> "Node":
        """A copy of an agent at rest, whose spending is counted separately from now on."""
        model = self.model_calls.model
        model = model.twin() if isinstance(model, OpenAICompatible) else model
        spending = self.model_calls.spending.copy()
        model_calls = ModelCalls(
            model, spending, self.model_calls.retries, self.model_calls.secret, self.observer
        )
        copy = Node(model_calls, self.policy, self.name, self.depth, self.observer, self.output_limit)
        if self.notebook is not None:
            copy.notebook = await self.notebook.twin(copy.functions())
        return copy

    async def close(self) -> None:
        notebook, self.notebook = self.notebook, None
        if notebook is not None:
            await notebook.close()


def _require_list(name: str, given: object) -> None:
    """Raises `TypeError` for what is no list: the code inside may call with anything, and a text would count
    as one item for each character."""
    if not isinstance(given, list):
        raise TypeError(f"{name} must be a list of texts, and not {type(given).__name__}: for one use [text]")


def _with(prompt: str, context: str | None) -> str:
    return prompt if context is None else f"{prompt}\n\n{cut(context, 100_000)}"
