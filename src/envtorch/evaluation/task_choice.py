"""Which tasks are played: those that a server has, those in a file, or seeds."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field

from envtorch.errors import ConfigurationError, ConnectFailed
from envtorch.rollout import Task
from envtorch.shown_urls import shown_url
from envtorch.tasks import TaskSet, source_named

__all__ = ["TaskLine", "seeded_tasks", "served_tasks", "tasks_in"]

PREFERRED_SPLITS = ("test", "validation")


class TaskLine(BaseModel):
    """A task in a file: what is told to the policy, what `reset` is given, and what the scorer needs."""

    model_config = ConfigDict(extra="forbid")

    id: str = ""
    prompt: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    data: dict[str, Any] = Field(default_factory=dict)


def tasks_in(source: str, limit: int | None = None) -> list[Task]:
    """The tasks of a JSONL or Parquet file, or of a dataset `hf:NAME:CONFIG:SPLIT`."""
    entries = TaskSet(TaskLine, source_named(source)).entries()
    return [
        Task(line.options, line.prompt, line.id or entry.id, line.data)
        for entry in islice(entries, limit)
        for line in (entry.task,)
    ]


def seeded_tasks(count: int) -> list[Task]:
    """Episodes of an environment without tasks, by seed."""
    return [Task({"seed": seed}, id=f"seed-{seed}") for seed in range(count)]


def served_tasks(
    url: str, *, split: str | None = None, limit: int | None = None, token: str | None = None
) -> list[Task] | None:
    """The tasks that a server's environment has, of `split`, or else of `test`, `validation` or the first.

    None when the environment has no tasks. Raises `ConfigurationError` when there is no such split.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=60) as http:
            named = http.get("/list_environments")
            if not named.is_success:
                return None  # a server that knows no task routes
            name = named.json()[0]
            answer = http.get(f"/{name}/splits")
            if answer.status_code in (404, 501):
                return None
            splits = [found["name"] for found in _json_of(answer)]
            chosen = split or next((name for name in PREFERRED_SPLITS if name in splits), splits[0])
            if chosen not in splits:
                raise ConfigurationError(f"there is no split {chosen!r}; there is {', '.join(splits)}")
            body = {"split": chosen, "start": 0, **({"stop": limit} if limit is not None else {})}
            found = _json_of(http.post(f"/{name}/task_range", json=body))["tasks"]
    except httpx.TransportError as error:
        raise ConnectFailed(f"there is no server at {shown_url(url)}: {error}") from error
    return [_task(item, chosen, place) for place, item in enumerate(found)]


def _task(item: Any, split: str, place: int) -> Task:
    if isinstance(item, Mapping) and item.keys() >= {"id", "hash"}:
        return Task({"task": {"id": item["id"], "hash": item["hash"]}}, id=str(item["id"]))
    return Task({"task": item}, id=f"{split}/{place}")


def _json_of(answer: httpx.Response) -> Any:
    if not answer.is_success:
        raise ConfigurationError(
            f"the server does not give its tasks: {answer.status_code}: {answer.text[:500]}"
        )
    return answer.json()
