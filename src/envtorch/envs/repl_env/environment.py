"""The REPL environment itself."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from envtorch.env import Environment, Rubric, Transform
from envtorch.envs.repl_env.budgets import Budget, Spending
from envtorch.envs.repl_env.episode import Rules, greeting
from envtorch.envs.repl_env.events import Observer, ignore
from envtorch.envs.repl_env.language_models import (
    HUGGING_FACE,
    FunctionModel,
    LanguageModel,
    OpenAICompatible,
)
from envtorch.envs.repl_env.model_calls import ModelCalls, Retries
from envtorch.envs.repl_env.models import CodeBlockResult, REPLAction, REPLObservation, REPLState
from envtorch.envs.repl_env.notebook import Block, Notebook, cut
from envtorch.envs.repl_env.recursion import Node, ran
from envtorch.errors import ConfigurationError, EnvironmentFailed, InvalidAction
from envtorch.sandbox import Policy
from envtorch.settings import REPLSettings
from envtorch.types import EnvironmentMetadata

__all__ = ["REPLEnvironment"]

RESERVE_S = 1.0
"""What is kept of the caller's time, half of it at most, for stopping code and telling how it went."""

STATE_CONTEXT_LIMIT = 1024 * 1024
"""How much of a context the state holds: it is sent whenever somebody asks for the state."""

NOT_YET = "Environment not initialized. Call reset() first."
OVER = "the episode is over: call reset to begin another"


class REPLEnvironment(Environment[REPLAction, REPLObservation, REPLState]):
    """A Python REPL for recursive language models: code in a sandbox, which may ask models and children.

    Whatever the code does is an observation. The episode ends with a final answer, with the last iteration,
    or with the interpreter, and the session goes on with the next `reset`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        *,
        context: str = "",
        task_prompt: str = "",
        max_iterations: int = 30,
        rules: Rules | None = None,
        llm_query_fn: Callable[[str], Any] | None = None,
        llm_batch_fn: Callable[[list[str]], Any] | None = None,
        model: LanguageModel | None = None,
        budget: Budget | None = None,
        model_calls: ModelCalls | None = None,
        retries: Retries | None = None,
        policy: Policy | None = None,
        observer: Observer = ignore,
        settings: REPLSettings | None = None,
        transform: Transform[REPLObservation] | None = None,
        rubric: Rubric | None = None,
    ) -> None:
        super().__init__(transform=transform, rubric=rubric)
        if model is not None and (llm_query_fn is not None or llm_batch_fn is not None):
            raise ConfigurationError("give a model or functions for one, not both")
        self._settings = settings or REPLSettings.from_environ()
        self._context = context or self._settings.context
        self._task_prompt = task_prompt or self._settings.task_prompt
        self._max_iterations = self._settings.max_iterations or max_iterations
        self._default_rules = rules or Rules()
        self._model = model
        if llm_query_fn is not None or llm_batch_fn is not None:
            self._model = FunctionModel(llm_query_fn, llm_batch_fn)
        self._budget = budget or Budget()
        self._model_calls = model_calls
        self._retries = retries or Retries()
        self._policy = policy or Policy(preload=("random",))
        self._observer = observer
        self._rules = self._default_rules
        self._node: Node | None = None
        self._state: REPLState | None = None
        self._context_length = 0
        self._preview: str | None = None
        self._is_over = False

    async def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        context: str | None = None,
        task_prompt: str | None = None,
        max_iterations: int | None = None,
        hf_token: str | None = None,
        llm_model: str | None = None,
        rules: dict[str, Any] | None = None,
    ) -> REPLObservation:
        """A fresh interpreter with `context` in it. `hf_token` and `llm_model` hold for this episode only."""
        self._rules = self._default_rules.with_changes(rules)
        limit = self._max_iterations if max_iterations is None else max_iterations
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidAction(f"max_iterations must be a whole number of 1 or more, not {limit!r}")
        text, task = context or self._context, task_prompt or self._task_prompt
        await self._reset_rubric_async()
        await self.close()
        self._node = await self._begin(text, seed, hf_token, llm_model)
        self._is_over = False
        self._context_length = len(text)
        self._preview = text[: self._rules.context_preview_length] if text else None
        self._state = REPLState(
            episode_id=episode_id or str(uuid4()),
            context=text[:STATE_CONTEXT_LIMIT] or None,
            task_prompt=task or None,
            max_iterations=limit,
        )
        metadata = {"task_prompt": task or None, "message": "Environment ready."}
        return self._observe(greeting(text, task), reward=0.0, metadata=metadata)

    async def step(self, action: REPLAction, timeout_s: float | None = None) -> REPLObservation:
        """Run the code, or take the final answer."""
        node, state = self._playing()
        state.step_count += 1
        state.iteration += 1
        if action.is_final:
            observation = self._take_answer(state, action.final_answer)
        elif state.iteration >= state.max_iterations:
            observation = self._stop(node, state)
        else:
            observation = await self._execute(node, state, action.code, timeout_s)
        if self.rubric is not None:
            observation.reward = await self._apply_rubric_async(action, observation)
        return self._apply_transform(observation)

    @property
    def state(self) -> REPLState:
        if self._state is None:
            raise RuntimeError(NOT_YET)
        if self._node is not None and self._node.notebook is not None:
            self._state.namespace_keys = list(self._node.notebook.seen.variables)
        return self._state

    async def fork(self) -> "REPLEnvironment":
        """An exact copy between two steps: the live interpreter, the counters, and what has been spent."""
        twin = REPLEnvironment(
            max_iterations=self._max_iterations,
            rules=self._default_rules,
            model=self._model,
            budget=self._budget,
            retries=self._retries,
            policy=self._policy,
            observer=self._observer,
            settings=self._settings,
        )
        for name in (
            "transform",
            "rubric",
            "_context",
            "_task_prompt",
            "_rules",
            "_context_length",
            "_preview",
        ):
            setattr(twin, name, getattr(self, name))
        twin._is_over = self._is_over
        twin._state = None if self._state is None else self._state.model_copy(deep=True)
        if self._node is not None:
            twin._node = await self._node.twin()
        return twin

    async def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.close()
            if node.model_calls.model is not None and node.model_calls.model is not self._model:
                await node.model_calls.model.close()

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name="repl_env",
            description="Python REPL environment for RLM-style code execution",
            version="0.1.0",
        )

    # ---- an episode ----

    async def _begin(
        self, context: str, seed: int | None, hf_token: str | None, llm_model: str | None
    ) -> Node:
        model_calls = self._model_calls or self._new_model_calls(self._key(hf_token), llm_model)
        policy = self._policy_for(context)
        node = Node(model_calls, policy, observer=self._observer, output_limit=self._rules.max_output_length)
        try:
            node.notebook = await Notebook.open(policy, node.functions(), context=context or None, seed=seed)
        except ConfigurationError as error:  # it does not travel: the caller gets the sentence
            raise EnvironmentFailed(str(error)) from error
        return node

    def _key(self, hf_token: str | None) -> str | None:
        """The episode's own token, else the key for where the model is: no key goes anywhere else."""
        settings = self._settings
        return hf_token or (settings.llm_api_key if settings.llm_base_url else settings.hf_token)

    def _new_model_calls(self, key: str | None, llm_model: str | None) -> ModelCalls:
        model = self._model or self._served_model(key, llm_model)
        return ModelCalls(model, Spending(self._budget), self._retries, key, self._observer)

    def _served_model(self, key: str | None, name: str | None) -> LanguageModel | None:
        """A model behind an address, where there is an address or a key for one."""
        settings = self._settings
        if settings.llm_base_url is None and key is None:
            return None
        return OpenAICompatible(
            settings.llm_base_url or HUGGING_FACE, name or settings.llm_model, api_key=key
        )

    def _policy_for(self, context: str) -> Policy:
        """The policy with room for the context, which takes twice its size while it is loaded."""
        room = 2 * sys.getsizeof(context) + 2**20
        return dataclasses.replace(self._policy, memory_bytes=self._policy.memory_bytes + room)

    def _playing(self) -> tuple[Node, REPLState]:
        if self._node is None or self._state is None:
            raise RuntimeError(NOT_YET)
        if self._is_over:
            raise EnvironmentFailed(OVER)
        return self._node, self._state

    def _take_answer(self, state: REPLState, answer: str | None) -> REPLObservation:
        state.final_answer = answer or ""
        metadata = {
            "final_answer": state.final_answer,
            "total_execution_time": state.total_execution_time,
            "total_iterations": state.iteration,
        }
        result = CodeBlockResult(stdout="Final answer submitted.")
        return self._observe(result, reward=self._rules.reward_on_success, metadata=metadata, done=True)

    def _stop(self, node: Node, state: REPLState) -> REPLObservation:
        """The last iteration runs no code; what the answer holds by then is taken."""
        assert node.notebook is not None
        state.final_answer = node.notebook.seen.content or None
        message = f"Maximum iterations ({state.max_iterations}) reached."
        metadata = {
            "final_answer": state.final_answer,
            "total_execution_time": state.total_execution_time,
            "total_iterations": state.iteration,
            "message": message,
        }
        result = CodeBlockResult(stderr=message, success=False, exception=message)
        reward = self._rules.reward_on_failure
        return self._observe(result, reward=reward, metadata=metadata, done=True, truncated=True)

    async def _execute(
        self, node: Node, state: REPLState, code: str, timeout_s: float | None
    ) -> REPLObservation:
        assert node.notebook is not None
        limit_s = self._limit_s(timeout_s)
        whole_s = None if timeout_s is None else limit_s
        with node.model_calls.spending.until(whole_s):
            block = await node.notebook.run(code, timeout_s=limit_s)
        self._observer(ran(node.name, code, block))
        state.total_execution_time += block.result.execution_time
        state.final_answer = block.final
        reward, done = self._judge(block)
        metadata = {
            "task_prompt": state.task_prompt,
            "final_answer": block.final,
            "execution_time": block.result.execution_time,
            "outcome": block.outcome,
        }
        return self._observe(block.result, reward=reward, metadata=metadata, done=done)

    def _judge(self, block: Block) -> tuple[float, bool]:
        rules = self._rules
        if block.final is not None:
            return rules.reward_on_success, True
        if not block.alive:
            return rules.reward_on_failure, True
        return rules.reward_on_iteration + (0.0 if block.result.success else rules.reward_on_error), False

    def _limit_s(self, timeout_s: float | None) -> float:
        """How long code may run: never longer than the policy allows, and within the caller's deadline."""
        if timeout_s is None:
            return self._policy.timeout_s
        return min(self._policy.timeout_s, timeout_s - min(RESERVE_S, timeout_s / 2))

    def _observe(
        self,
        result: CodeBlockResult,
        *,
        reward: float,
        metadata: Mapping[str, Any],
        done: bool = False,
        truncated: bool = False,
    ) -> REPLObservation:
        assert self._node is not None
        state = self.state
        limit = self._rules.max_output_length
        shown = result.model_copy(
            update={"stdout": cut(result.stdout, limit), "stderr": cut(result.stderr, limit)}
        )
        self._is_over = done
        return REPLObservation(
            result=shown,
            context_preview=self._preview,
            context_length=self._context_length,
            available_variables=list(state.namespace_keys),
            iteration=state.iteration,
            max_iterations=state.max_iterations,
            reward=reward,
            done=done,
            truncated=truncated or None,
            metadata={**metadata, "usage": self._node.model_calls.spending.usage()},
        )
