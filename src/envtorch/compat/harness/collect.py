"""Rollouts collected into a directory: one line of JSON per episode, to be gone on with later."""

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from envtorch.compat.harness.adapters import HarnessAdapter, as_json
from envtorch.compat.harness.rollout import resolve_env_reward
from envtorch.compat.harness.values import (
    HarnessRolloutResult,
    HarnessRunLimits,
    Message,
    ModelStep,
    ModelStepResult,
    VerifyResult,
)
from envtorch.compat.utils import run_async_safely
from envtorch.llm import LLMClient
from envtorch.types import Tool

__all__ = ["CollectResult", "CollectRunner", "EpisodeRecord", "RolloutSerializer", "build_model_step"]

SAMPLING = frozenset({"temperature", "max_tokens", "top_p", "top_k", "stop", "seed"})
"""The sampling options that services understand."""


@dataclass
class EpisodeRecord:
    """One episode, as it is written down."""

    episode_id: str
    messages: list[Message]
    reward: float
    done: bool
    tool_trace: list[dict[str, Any]]
    metrics: dict[str, Any]
    verify_metrics: dict[str, Any]
    artifacts: dict[str, Any]
    task: Any = None
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_rollout(
        cls,
        episode_id: str,
        rollout: HarnessRolloutResult,
        verify: VerifyResult,
        *,
        task: Any = None,
        extra: dict[str, Any] | None = None,
    ) -> Self:
        return cls(
            episode_id=episode_id,
            messages=list(rollout.messages),
            reward=resolve_env_reward(rollout, verify),
            done=rollout.done or verify.done,
            tool_trace=[asdict(entry) for entry in rollout.tool_trace],
            metrics=dict(rollout.metrics),
            verify_metrics=dict(verify.metrics),
            artifacts=dict(verify.artifacts),
            task=task,
            extra=dict(extra or {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """The episode as plain JSON has it."""
        plain: dict[str, Any] = as_json(asdict(self))
        return plain


class RolloutSerializer:
    """The directory: `results.jsonl`, and `metadata.json` beside it."""

    def __init__(self, output_dir: str | Path) -> None:
        self.output_dir = Path(output_dir)
        self.results_path = self.output_dir / "results.jsonl"
        self.metadata_path = self.output_dir / "metadata.json"

    def write_episode(self, record: EpisodeRecord) -> None:
        self.output_dir.mkdir(parents=True, exist_ok=True)
        with self.results_path.open("a", encoding="utf-8") as results:
            results.write(json.dumps(record.to_dict()) + "\n")

    def write_metadata(self, metadata: dict[str, Any]) -> None:
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self.metadata_path.write_text(json.dumps(as_json(metadata), indent=2), encoding="utf-8")

    def collected_episode_ids(self) -> set[str]:
        return {episode["episode_id"] for episode in self.episodes()}

    def episodes(self) -> Iterator[dict[str, Any]]:
        if self.results_path.is_file():
            for line in self.results_path.read_text(encoding="utf-8").splitlines():
                if line.strip():
                    yield json.loads(line)

    def start_over(self) -> None:
        """Put what was collected aside, so that the next episode is the first."""
        if self.results_path.is_file():
            aside = self.output_dir / f"results.{time.time_ns()}.bak.jsonl"
            self.results_path.rename(aside)
            warnings.warn(f"moved existing results file to {aside.name}", RuntimeWarning, stacklevel=3)


@dataclass
class CollectResult:
    """What a collection came to."""

    num_collected: int = 0
    num_skipped: int = 0
    num_dropped: int = 0
    num_failed: int = 0
    episode_ids: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    @property
    def success_rate(self) -> float:
        return sum(reward > 0 for reward in self.rewards) / len(self.rewards) if self.rewards else 0.0

    @property
    def avg_reward(self) -> float:
        return sum(self.rewards) / len(self.rewards) if self.rewards else 0.0


class CollectRunner:
    """Plays episodes one after the other and writes them down; those already there are not played again."""

    def __init__(
        self,
        session_factory: Any,
        harness_adapter: HarnessAdapter,
        serializer: RolloutSerializer,
        tasks: Iterable[Any] | None = None,
        limits: HarnessRunLimits | None = None,
    ) -> None:
        self._factory = session_factory
        self._adapter = harness_adapter
        self._serializer = serializer
        self._tasks = iter(tasks) if tasks is not None else None
        self._limits = limits

    def run(
        self,
        model_step: ModelStep,
        num_episodes: int,
        *,
        episode_id_prefix: str = "ep",
        resume: bool = True,
        should_keep: Callable[[EpisodeRecord], bool] | None = None,
    ) -> CollectResult:
        """Collect up to `num_episodes`, counting those of an earlier run."""
        if not resume:
            self._serializer.start_over()
        already = self._serializer.collected_episode_ids()
        result = CollectResult()
        for number in range(num_episodes):
            episode_id = f"{episode_id_prefix}-{number:06d}"
            task = next(self._tasks, None) if self._tasks is not None else None
            if episode_id in already:
                result.num_skipped += 1
                continue
            try:
                record = self._play(model_step, task, episode_id)
            except Exception as error:  # one episode's failure is not the collection's
                warnings.warn(f"episode {episode_id} failed: {error!r}", RuntimeWarning, stacklevel=2)
                result.num_failed += 1
                continue
            self._keep(record, result, should_keep)
        return result

    def _play(self, model_step: ModelStep, task: Any, episode_id: str) -> EpisodeRecord:
        session = self._factory.create(task, episode_id=episode_id)
        try:
            rollout = self._adapter.run_white_box(model_step, session, self._limits)
            verdict = session.verify(rollout.messages)
        finally:
            session.close()
        return EpisodeRecord.from_rollout(episode_id, rollout, verdict, task=task)

    def _keep(
        self,
        record: EpisodeRecord,
        result: CollectResult,
        should_keep: Callable[[EpisodeRecord], bool] | None,
    ) -> None:
        if should_keep is not None and not should_keep(record):
            result.num_dropped += 1
            return
        self._serializer.write_episode(record)
        result.num_collected += 1
        result.episode_ids.append(record.episode_id)
        result.rewards.append(record.reward)


def build_model_step(client: LLMClient, *, system_prompt: str | None = None) -> ModelStep:
    """A client of a language model as a step of a rollout."""

    def step(messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        unknown = sorted(set(sampling) - SAMPLING)
        if unknown:
            told = f"Dropping unsupported sampling keys: {', '.join(unknown)}"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        offered = [
            {"name": t.name, "description": t.description, "inputSchema": t.input_schema} for t in tools
        ]
        said = list(messages)
        if system_prompt is not None and not any(m.get("role") == "system" for m in said):
            said.insert(0, {"role": "system", "content": system_prompt})
        known = {name: value for name, value in sampling.items() if name in SAMPLING}
        answer = run_async_safely(client.complete_with_tools(said, offered, **known))
        return ModelStepResult(response=answer)

    return step
