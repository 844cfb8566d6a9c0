"""A rubric that asks a language model."""

import re
from collections.abc import Mapping
from typing import Any

from envtorch.llm import LLMClient
from envtorch.rubrics.base import Rubric

__all__ = ["LLMJudge"]

FIRST_NUMBER = r"(\d+\.?\d*)"


class LLMJudge(Rubric):
    """Fills a prompt with `{action}` and `{observation}` and reads the score from the model's reply.

    The score is what the pattern's first group matches, kept between 0 and 1 unless `normalize` is
    off; a reply without one gives `default_score`.
    """

    def __init__(
        self,
        prompt_template: str,
        client: LLMClient,
        *,
        score_pattern: str | None = None,
        default_score: float = 0.0,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.prompt_template = prompt_template
        self.default_score = default_score
        self.normalize = normalize
        self._client = client
        self._score_pattern = re.compile(score_pattern or FIRST_NUMBER)

    async def forward(self, action: Any, observation: Any) -> float:
        prompt = self.prompt_template.format(action=action, observation=observation)
        return self._score_in(await self._client.complete(prompt))

    def _score_in(self, reply: str) -> float:
        found = self._score_pattern.search(reply)
        if found is None:
            return self.default_score
        try:
            score = float(found.group(1) if self._score_pattern.groups else found.group())
        except (TypeError, ValueError):
            return self.default_score
        return min(max(score, 0.0), 1.0) if self.normalize else score

    def state_dict(self) -> dict[str, Any]:
        return {
            "prompt_template": self.prompt_template,
            "score_pattern": self._score_pattern.pattern,
            "default_score": self.default_score,
            "normalize": self.normalize,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.prompt_template = state.get("prompt_template", self.prompt_template)
        self._score_pattern = re.compile(state.get("score_pattern", self._score_pattern.pattern))
        self.default_score = state.get("default_score", self.default_score)
        self.normalize = state.get("normalize", self.normalize)
