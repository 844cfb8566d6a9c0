"""OpenEnv's evaluations: one harness interface, and Inspect AI behind it."""

from abc import ABC, abstractmethod
from typing import Any

from pydantic import BaseModel, ConfigDict

from envtorch.errors import MissingExtra

__all__ = ["EvalConfig", "EvalHarness", "EvalResult", "InspectAIHarness"]


class EvalConfig(BaseModel):
    """Everything it takes to run an evaluation again."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    harness_name: str
    harness_version: str
    library_versions: dict[str, str]
    dataset: str
    eval_parameters: dict[str, Any]


class EvalResult(BaseModel):
    """What an evaluation came to, and what was evaluated."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    config: EvalConfig
    scores: dict[str, Any]


class EvalHarness(ABC):
    """Runs evaluations."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def run(
        self,
        harness_version: str,
        library_versions: dict[str, str],
        dataset: str,
        eval_parameters: dict[str, Any],
    ) -> dict[str, Any]:
        """The scores, by name."""

    def run_from_config(self, config: EvalConfig) -> EvalResult:
        """`run`, with everything from one value."""
        scores = self.run(
            harness_version=config.harness_version,
            library_versions=config.library_versions,
            dataset=config.dataset,
            eval_parameters=config.eval_parameters,
        )
        return EvalResult(config=config, scores=scores)


class InspectAIHarness(EvalHarness):
    """Evaluations of Inspect AI. `eval_parameters` needs a `model`; the rest are Inspect's own options."""

    def __init__(self, *, log_dir: str | None = None) -> None:
        self.log_dir = log_dir

    def run(
        self,
        harness_version: str,
        library_versions: dict[str, str],
        dataset: str,
        eval_parameters: dict[str, Any],
    ) -> dict[str, Any]:
        try:
            from inspect_ai import eval as inspect_eval
        except ImportError as missing:
            raise MissingExtra("inspect-ai is required: pip install inspect-ai") from missing
        options = {name: value for name, value in eval_parameters.items() if value is not None}
        if "model" not in options:
            raise ValueError("eval_parameters needs a 'model'")
        if self.log_dir is not None:
            options["log_dir"] = self.log_dir
        task = options.pop("task", dataset)
        logs = inspect_eval(task, **options)
        if not logs:
            raise RuntimeError("Inspect AI returned no logs")
        if logs[0].status != "success":
            raise RuntimeError(f"the evaluation failed with status {logs[0].status!r}")
        return self._extract_scores(logs[0])

    def _extract_scores(self, log: Any) -> dict[str, Any]:
        if log.results is None:
            return {}
        return {name: metric.value for score in log.results.scores for name, metric in score.metrics.items()}
