"""What `envtorch eval` does: finds the model, the tasks and the scorer, and plays."""

import inspect
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from envtorch.cli.serving import action_schema_at, is_url, refuse_unusable
from envtorch.client import EnvClient, GenericEnvClient, MCPToolClient
from envtorch.errors import ConfigurationError, EnvTorchError, InvalidAction
from envtorch.evaluation import (
    EvalReport,
    Evaluation,
    EvaluationSettings,
    seeded_tasks,
    served_tasks,
    tasks_in,
)
from envtorch.rollout import (
    Candidate,
    ChatFormat,
    Completion,
    GroupScorer,
    OpenAIPolicy,
    Prompt,
    RolloutPolicy,
    Rollouts,
    Task,
    ToolFormat,
    format_of_schema,
    score_each,
)
from envtorch.rollout.play_options import refuse_no_timeout
from envtorch.rollout.rollout_progress import RolloutProgress
from envtorch.settings import model_api_key
from envtorch.shown_urls import shown_url
from envtorch.targets import function_named
from envtorch.tracebacks import author_line, author_traceback

__all__ = ["EvalRun", "ModelChoice", "TaskWish", "directory_of"]

SCRIPTED = "scripted:"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model is evaluated, and how it is asked."""

    where: str
    name: str | None
    temperature: float
    max_tokens: int
    stream: bool
    requests_per_s: float | None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        if not self.where.startswith((SCRIPTED, "http://", "https://")):
            raise ConfigurationError(
                f"--model {shown_url(self.where)!r} is neither a URL nor scripted:FILE.py:FUNCTION",
                next_step="name an endpoint, as in --model http://127.0.0.1:8080/v1 --model-name NAME",
            )
        if not self.where.startswith(SCRIPTED):
            refuse_unusable(self.where)
        _refuse_number("--temperature", self.temperature)
        _refuse_number("--requests-per-s", self.requests_per_s, above=0)
        _refuse_number("--tokens-per-minute", self.tokens_per_minute, above=0)

    async def named(self) -> Self:
        """The same choice with the model's name. Raises `EndpointFailed` when it does not answer."""
        if self.name is not None or self.where.startswith(SCRIPTED):
            return self
        return replace(self, name=await self._only_model())

    @property
    def label(self) -> str:
        """What the model is called in the name of a directory."""
        return self.name or self.where.removeprefix(SCRIPTED).replace(".py:", "-")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[str, RolloutPolicy]]:
        """The model's name and the policy. Raises `EndpointFailed` when the endpoint does not answer."""
        if self.where.startswith(SCRIPTED):
            name = self.where.removeprefix(SCRIPTED)
            yield self.where, scripted(function_named(name), name)
            return
        name = self.name or await self._only_model()
        async with self._policy(name) as policy:
            yield name, policy

    async def _only_model(self) -> str:
        async with self._policy("") as policy:
            names = await policy.models()
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise ConfigurationError(
                f"the endpoint has {len(names)} models: {listed}",
                next_step="say which one: --model-name NAME",
            )
        return names[0]

    def _policy(self, name: str) -> OpenAIPolicy:
        return OpenAIPolicy(
            self.where,
            name,
            api_key=model_api_key(),
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            stream=self.stream,
            requests_per_s=self.requests_per_s,
            tokens_per_minute=self.tokens_per_minute,
        )


def directory_of(target: str, model: ModelChoice) -> Path:
    """Where the results of a model on a target are if the command line does not say."""
    if is_url(target):
        name = shown_url(target).partition("://")[2].removeprefix("***@").rstrip("/")
    else:
        place, _, inside = target.partition(":")
        name = Path(place).resolve().name if Path(place).exists() else place
        name = f"{name.removesuffix('.py')}-{inside}".strip("-")
    return Path("evals") / re.sub(r"[^\w.-]+", "-", f"{name}-{model.label}").strip("-.")


def scripted(function: Callable[..., Any], name: str) -> RolloutPolicy:
    """A policy of a function from messages to text, or to a `Completion`; plain or async.

    What the function raises becomes a `ConfigurationError` that calls it `name` and shows its frames.
    """

    async def complete(prompts: Sequence[Prompt]) -> list[Completion]:
        said = []
        for prompt in prompts:
            try:
                answer = function(list(prompt.messages))
                answer = await answer if inspect.isawaitable(answer) else answer
            except Exception as error:  # the author's code
                raise _raised(f"the scripted model {name}", error) from error
            if not isinstance(answer, str | Completion):
                kind = type(answer).__name__
                raise ConfigurationError(
                    f"the scripted model {name} returned {kind}: it must return text, or a Completion"
                )
            said.append(answer if isinstance(answer, Completion) else Completion(answer))
        return said

    return complete


def _raised(what: str, error: Exception) -> ConfigurationError:
    """What code of the command line's raised, with the frames that are its own."""
    line = author_line(error)
    at = f" ({line})" if line else ""
    return ConfigurationError(
        f"{what} raised {type(error).__name__}: {error}{at}", traceback=author_traceback(error)
    )


@dataclass(frozen=True, slots=True)
class TaskWish:
    """Which tasks are wanted: so many of the environment's, or those of a file or dataset."""

    count: int | None
    source: str | None
    split: str | None

    @classmethod
    def of(cls, given: str | None, split: str | None, limit: int | None, usual: int) -> Self:
        """As a command line says it."""
        if given is not None and not given.isdecimal():
            if split is not None:
                raise ConfigurationError("--split is for the environment's own tasks, not for a file")
            return cls(limit, given, None)
        if limit is not None:
            raise ConfigurationError("--limit is for a file of tasks; --tasks N takes N of the environment's")
        count = int(given) if given is not None else usual
        if count < 1:
            raise ConfigurationError("--tasks is at least 1")
        return cls(count, None, split)

    def found(self, url: str, token: str | None) -> list[Task]:
        """The tasks: of the file, of the server, or seeds where the environment has no tasks."""
        if self.source is not None:
            return tasks_in(self.source, self.count)
        tasks = served_tasks(url, split=self.split, limit=self.count, token=token)
        if tasks is None and self.split is not None:
            raise ConfigurationError("this environment has no tasks, and no splits: leave --split out")
        return seeded_tasks(self.count or 1) if tasks is None else tasks


@dataclass(frozen=True, slots=True)
class EvalRun:
    """One run of the command."""

    target: str
    model: ModelChoice
    tasks: TaskWish
    samples: int
    max_turns: int
    concurrency: int
    step_timeout_s: float | None
    scorer: str | None
    passes_at: float
    price_in: float | None
    price_out: float | None
    token: str | None

    def __post_init__(self) -> None:
        refuse_no_timeout("--step-timeout", self.step_timeout_s)
        _refuse_number("--pass-at", self.passes_at, least=-math.inf)
        _refuse_number("--price-in", self.price_in)
        _refuse_number("--price-out", self.price_out)

    async def play(self, url: str, directory: Path, *, shows_progress: bool) -> tuple[Evaluation, EvalReport]:
        """Play what is missing, and write the reports."""
        scorer = _scorer(self.scorer)
        client, format = _client_of(url, self.token)
        tasks = self.tasks.found(url, self.token)
        async with self.model.opened() as (name, policy):
            evaluation = Evaluation(directory, self._settings(name), tasks)
            rollouts = Rollouts(
                client,
                url,
                policy,
                format=format,
                concurrency=self.concurrency,
                max_turns=self.max_turns,
                step_timeout_s=self.step_timeout_s,
                score=scorer,
                client_options={"token": self.token} if self.token else None,
            )
            async with rollouts:
                try:
                    if not shows_progress:
                        return evaluation, await evaluation.run(rollouts)
                    with RolloutProgress(len(tasks), done=evaluation.done) as progress:
                        return evaluation, await evaluation.run(rollouts, on_group=progress.add)
                except InvalidAction as error:  # of a `reset`: what a policy does is an ending
                    raise ConfigurationError(
                        f"a task cannot be played: {error.message}",
                        next_step="correct the options of the tasks that --tasks names",
                    ) from error

    def _settings(self, model: str) -> EvaluationSettings:
        return EvaluationSettings(
            target=shown_url(self.target),
            model=model,
            samples=self.samples,
            passes_at=self.passes_at,
            max_turns=self.max_turns,
            temperature=self.model.temperature,
            max_tokens=self.model.max_tokens,
            step_timeout_s=self.step_timeout_s,
            scorer=self.scorer,
            price_in=self.price_in,
            price_out=self.price_out,
        )


def _refuse_number(
    option: str, given: float | None, *, least: float = 0.0, above: float | None = None
) -> None:
    """Raise `ConfigurationError` for a number that is out of range; NaN and infinity always are."""
    if given is None or (math.isfinite(given) and given >= least and (above is None or given > above)):
        return
    wanted = "a number" if least == -math.inf else "a number of 0 or more"
    wanted = wanted if above is None else f"a number above {above:g}"
    raise ConfigurationError(f"{option} is {wanted}, not {given:g}")


def _scorer(name: str | None) -> GroupScorer | None:
    if name is None:
        return None
    function = function_named(name)
    if not inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"--score {name}: write it as `async def`, from a Candidate to a number")

    async def score(candidate: Candidate) -> float:
        try:
            given: float = await function(candidate)
        except EnvTorchError:
            raise  # of a session, which may be lost
        except Exception as error:  # the author's code
            raise _raised(f"the scorer {name}", error) from error
        try:
            return float(given)
        except (TypeError, ValueError):
            kind = type(given).__name__
            raise ConfigurationError(f"the scorer {name} returned {kind}: it must return a number") from None

    return score_each(score)


def _client_of(url: str, token: str | None) -> tuple[type[EnvClient[Any, Any, Any]], ChatFormat]:
    """A client of whatever is served there, and how it is played in a conversation."""
    format = format_of_schema(action_schema_at(url, token))
    return (MCPToolClient if isinstance(format, ToolFormat) else GenericEnvClient), format
