"""Calls of language models for an agent: within the budget, with retries, one or many at once."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from envtorch.envs.repl_env.budgets import BudgetSpent, Spending
from envtorch.envs.repl_env.events import Asked, Observer, ignore
from envtorch.envs.repl_env.language_models import (
    Completion,
    FunctionModel,
    LanguageModel,
    Message,
    ModelFailed,
    Request,
)

__all__ = ["ModelCalls", "Retries"]

_CHARACTERS_PER_TOKEN = 4
_NO_MODEL = (
    "no language model is set up: pass llm_query_fn, give hf_token to reset, or set LLM_BASE_URL or HF_TOKEN "
    "where the environment runs"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and after which pause, a request that may yet succeed is made again."""

    attempts: int = 4
    first_s: float = 0.5
    most_s: float = 30.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def pause_s(self, attempt: int, asked_for_s: float | None) -> float:
        """What the server asks for, else twice as long each time, less up to a half at random."""
        if asked_for_s is not None:
            return asked_for_s
        return min(self.most_s, self.first_s * 2.0**attempt) * random.uniform(0.5, 1.0)  # noqa: S311


@dataclass(slots=True)
class ModelCalls:
    """The language model of one episode, for every agent of its tree."""

    model: LanguageModel | None
    spending: Spending
    retries: Retries = field(default_factory=Retries)
    secret: str | None = field(default=None, repr=False)
    """A token that must not come back in any text, whatever a server says."""
    observer: Observer = ignore
    _asked: dict[str, int] = field(default_factory=dict)

    async def query(self, node: str, prompt: str, model: str | None = None) -> str:
        """`llm_query`: the answer, or a sentence that says why there is none."""
        return (await self.query_all(node, [prompt], model, failed="Error calling LLM: "))[0]

    async def query_all(
        self, node: str, prompts: Sequence[str], model: str | None = None, *, failed: str = "Error: "
    ) -> list[str]:
        """`llm_query_batched`: all answers, in order; a failure is a sentence in its place.

        What the budget does not allow is refused before a request is made of it, and no more requests exist
        at a time than may run at a time.
        """
        if self.model is None:
            return [f"{failed}{_NO_MODEL}"] * len(prompts)
        allowed, refusal = self.spending.allowed_calls(len(prompts))
        refused = [f"{failed}{refusal}"] * (len(prompts) - allowed)
        if isinstance(self.model, FunctionModel) and self.model.has_batch and len(prompts) > 1:
            requests = [self._user_request(node, prompt, model) for prompt in prompts[:allowed]]
            return await self._in_one_call(self.model, requests) + refused
        answers = [""] * allowed
        waiting = iter(range(allowed))

        async def work() -> None:
            for number in waiting:
                answers[number] = await self._told(self._user_request(node, prompts[number], model), failed)
                await asyncio.sleep(0)  # a model that answers at once must not keep the loop

        workers = min(self.spending.budget.concurrency, allowed)
        await asyncio.gather(*(work() for _ in range(workers)))
        return answers + refused

    async def converse(self, node: str, messages: Sequence[Message], model: str | None = None) -> str:
        """An agent's own turn. Raises `ModelFailed` or `BudgetSpent`."""
        return await self._ask(self._request(node, messages, model), turn=True)

    def _user_request(self, node: str, prompt: str, model: str | None) -> Request:
        return self._request(node, [{"role": "user", "content": prompt}], model)

    def _request(self, node: str, messages: Sequence[Message], model: str | None) -> Request:
        number = self._asked[node] = self._asked.get(node, 0) + 1
        return Request(tuple(messages), model, node, number)

    async def _told(self, request: Request, failed: str) -> str:
        try:
            return await self._ask(request)
        except (ModelFailed, BudgetSpent) as error:
            return f"{failed}{error.message}"

    async def _in_one_call(self, model: FunctionModel, requests: list[Request]) -> list[str]:
        """A user's own batch function gets all prompts that the budget allows, at once."""
        answers: list[str] = []
        allowed: list[Request] = []
        for request in requests:
            try:
                self.spending.take_call()
                allowed.append(request)
            except BudgetSpent as error:
                answers.append(f"Error: {error.message}")
        try:
            async with asyncio.timeout(self.spending.left_s()):
                given = await model.complete_all([request.prompt for request in allowed]) if allowed else []
        except TimeoutError:
            given = ["Error: the time for it is over"] * len(allowed)
        except ModelFailed as error:
            self.spending.failures += len(allowed)
            given = [f"Error: {self._clean(error.message)}"] * len(allowed)
        for request, text in zip(allowed, given, strict=True):
            self._charge(request, Completion(text))
            self.observer(Asked.of(request, text))
        return given + answers

    async def _ask(self, request: Request, *, turn: bool = False) -> str:
        if self.model is None:
            raise ModelFailed(_NO_MODEL)
        self.spending.take_call()
        try:
            async with asyncio.timeout(self.spending.left_s()), self.spending.turns:
                completion = await self._persist(self.model, request)
        except TimeoutError:
            self.spending.failures += 1
            self.observer(Asked.of(request, None, error="out of time", turn=turn))
            raise BudgetSpent("the time for it is over") from None
        except ModelFailed as error:
            self.spending.failures += 1
            cleaned = ModelFailed(self._clean(error.message))
            self.observer(Asked.of(request, None, error=cleaned.message, turn=turn))
            raise cleaned from None  # the cause may hold headers
        text = self._clean(completion.text)
        self._charge(request, completion)
        self.observer(Asked.of(request, text, turn=turn))
        return text

    async def _persist(self, model: LanguageModel, request: Request) -> Completion:
        for attempt in range(self.retries.attempts):
            try:
                return await model.complete(request)
            except ModelFailed as error:
                pause_s = self.retries.pause_s(attempt, error.retry_after_s)
                left_s = self.spending.left_s()
                hopeless = left_s is not None and pause_s >= left_s
                if not error.retry or hopeless or attempt + 1 == self.retries.attempts:
                    raise
                self.spending.retries += 1
                await self.retries.sleep(pause_s)
        raise AssertionError("unreachable")

    def _charge(self, request: Request, completion: Completion) -> None:
        spending = self.spending
        asked = completion.prompt_tokens
        if asked is None:
            asked = sum(len(m["content"]) for m in request.messages) // _CHARACTERS_PER_TOKEN
        said = completion.completion_tokens
        if said is None:
            said = len(completion.text) // _CHARACTERS_PER_TOKEN
        spending.prompt_tokens += asked
        spending.completion_tokens += said

    def _clean(self, text: str) -> str:
        return text.replace(self.secret, "***") if self.secret else text
