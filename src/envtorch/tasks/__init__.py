"""Tasks: datasets of what an environment's episodes are about."""

from envtorch.tasks.task_set import TaskEntry, TaskSet
from envtorch.tasks.task_sources import HubDataset, TaskSource, source_named

__all__ = ["HubDataset", "TaskEntry", "TaskSet", "TaskSource", "source_named"]
