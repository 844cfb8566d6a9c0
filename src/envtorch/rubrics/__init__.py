"""Scores for what an agent did: small rubrics that compose, as modules of a network do."""

from envtorch.rubrics.base import Rubric, Score
from envtorch.rubrics.containers import Gate, RubricDict, RubricList, Sequential, WeightedSum
from envtorch.rubrics.llm_judge import LLMJudge
from envtorch.rubrics.trajectory import ExponentialDiscountingTrajectoryRubric, TrajectoryRubric

__all__ = [
    "ExponentialDiscountingTrajectoryRubric",
    "Gate",
    "LLMJudge",
    "Rubric",
    "RubricDict",
    "RubricList",
    "Score",
    "Sequential",
    "TrajectoryRubric",
    "WeightedSum",
]
