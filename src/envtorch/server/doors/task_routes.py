"""The task routes: which splits and tasks an environment has. They work before any `reset`."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse, Response

from envtorch.errors import EnvironmentFailed, EnvTorchError
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import encode_value
from envtorch.protocol.messages import read_json
from envtorch.server.doors.http_routes import answering_errors
from envtorch.server.sessions.registry import Sessions

__all__ = ["TaskDoor"]

_SPLIT_TYPES = ("train", "validation", "test")


class SplitRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    split: str


class TaskRequest(SplitRequest):
    index: int


class TaskRangeRequest(SplitRequest):
    start: int | None = None
    stop: int | None = None


class UnknownEnvironment(EnvTorchError):
    """The path names an environment that is not served here."""

    http_status = 404


class InvalidIndex(EnvTorchError):
    """The environment has no task at that index."""

    http_status = 400


class TaskDoor:
    """`GET /list_environments` and `/{env}/...`, for environments that are a `TaskProvider`."""

    def __init__(self, sessions: Sessions, name: str) -> None:
        self._sessions = sessions
        self._name = name

    def register(self, router: APIRouter) -> None:
        told: dict[str, Any] = {"tags": ["Tasks"]}
        ask: dict[str, Any] = {"methods": ["POST"], **told}
        router.add_api_route("/list_environments", self.environments, **told)
        router.add_api_route("/{env_name}/splits", answering_errors(self.splits), **told)
        router.add_api_route("/{env_name}/tasks", answering_errors(self.tasks), **ask)
        router.add_api_route("/{env_name}/num_tasks", answering_errors(self.num_tasks), **ask)
        router.add_api_route("/{env_name}/task", answering_errors(self.task), **ask)
        router.add_api_route("/{env_name}/task_range", answering_errors(self.task_range), **ask)

    async def environments(self) -> Response:
        """The one environment this server has."""
        return JSONResponse([self._name])

    async def splits(self, env_name: str) -> Response:
        """The splits, each with the kind it is."""
        splits = await self._ask(env_name, "list_splits")
        return _json([_split(split) for split in splits])

    async def tasks(self, env_name: str, body: SplitRequest) -> Response:
        """Every task of a split."""
        tasks = await self._ask(env_name, "list_tasks", body.split)
        return _json({"tasks": list(tasks), "env_name": env_name})

    async def num_tasks(self, env_name: str, body: SplitRequest) -> Response:
        """How many tasks a split has."""
        return _json({"num_tasks": await self._ask(env_name, "num_tasks", body.split)})

    async def task(self, env_name: str, body: TaskRequest) -> Response:
        """One task."""
        return _json({"task": await self._ask(env_name, "get_task", body.split, body.index)})

    async def task_range(self, env_name: str, body: TaskRangeRequest) -> Response:
        """The tasks from `start` up to `stop`."""
        found = await self._ask(env_name, "get_task_range", body.split, body.start, body.stop)
        return _json({"tasks": list(found)})

    async def _ask(self, env_name: str, method: str, *args: Any) -> Any:
        if env_name.lower() != self._name.lower():
            raise UnknownEnvironment(f"unknown environment '{env_name}'")
        try:
            return read_json(await self._sessions.ask(Call.with_arguments("tasks", method, *args)))
        except EnvironmentFailed as error:
            if error.details.get("exception") == "IndexError":
                raise InvalidIndex("Invalid task index") from error
            raise


def _split(split: Any) -> Any:
    """A split as `{name, type}`; an author may give just its name."""
    if not isinstance(split, str):
        return split
    return {"name": split, "type": split if split in _SPLIT_TYPES else "validation"}


def _json(value: object) -> Response:
    return Response(encode_value(value), media_type="application/json")
