"""Evaluation: tasks played several times with a policy, and a report of how it did."""

from envtorch.evaluation.estimates import Estimate, mean_estimate, pass_at_k
from envtorch.evaluation.eval_report import EvalReport, TaskResult
from envtorch.evaluation.evaluating import Evaluation, EvaluationSettings
from envtorch.evaluation.report_page import report_page
from envtorch.evaluation.task_choice import seeded_tasks, served_tasks, tasks_in

__all__ = [
    "Estimate",
    "EvalReport",
    "Evaluation",
    "EvaluationSettings",
    "TaskResult",
    "mean_estimate",
    "pass_at_k",
    "report_page",
    "seeded_tasks",
    "served_tasks",
    "tasks_in",
]
