"""The session routes of the Open Reward Standard: an episode as a prompt and calls of tools.

`X-Session-ID` is the token of an EnvTorch session. `POST /create_session` opens it, `/create` begins its
episode, `/{env}/call` takes a step and streams what came of it, `/delete` ends it. A client that loses its
connection in a call sends the same call with the `task_id` it was told: the step is not taken again.

The standard's clients send the server's token as `X-API-Key`; a path without an environment's name means the
one environment that is served. `X-Secrets`, in which they repeat that token, is not read: an environment gets
its secrets when its server is started.
"""

import asyncio
import json
import math
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from envtorch.errors import EnvironmentFailed, EnvTorchError, InvalidAction, SessionLost
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.mcp_result import DONE
from envtorch.protocol.messages import read_json
from envtorch.protocol.observation_text import observation_text
from envtorch.server.doors.agent_tools import STEP, AgentTools
from envtorch.server.doors.http_bodies import ResetRequest
from envtorch.server.doors.http_routes import DefaultRoute, answering_errors, require_json
from envtorch.server.doors.task_routes import InvalidIndex, UnknownEnvironment
from envtorch.server.sessions.other_replicas import missing, require_here
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session

__all__ = ["ORS_PATHS", "ORS_SESSION_HEADER", "OrsDoor"]

ORS_SESSION_HEADER = "X-Session-ID"
ORS_PATHS = (
    *("/create_session", "/create", "/ping", "/delete", "/delete_session"),
    *("/prompt", "/messages", "/call", "/score_group"),
)
"""How the paths end whose session is the one that `ORS_SESSION_HEADER` names."""
QUIET_S = 10.0
"""How often a stream says that it is alive: clients give up one that is silent for 30 seconds."""
PIECE = 4096
"""How many characters of a result are in one event."""


TaskId = Annotated[str, Field(max_length=255, pattern=r"^[!-~]*$")]
"""Printable ASCII without spaces: the id is sent back as the whole of an event's data."""


M = TypeVar("M", bound=BaseModel)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CreateRequest(_Asked):
    """Which task an episode is about: its specification, or where it stands in a split."""

    env_name: str | None = None
    task_spec: dict[str, Any] | None = None
    split: str | None = None
    index: int | None = None
    toolset_name: str | None = None


class CallRequest(_Asked):
    """A call of a tool."""

    name: str
    input: dict[str, Any] = {}
    task_id: TaskId | None = None


class ScoreGroupRequest(_Asked):
    """Candidates to be compared."""

    candidates: list[dict[str, Any]]
    task_id: TaskId | None = None


class SessionGone(EnvTorchError):
    """The session of this `X-Session-ID` has ended; the standard has 410 for it."""

    code = SessionLost.code
    http_status = 410


class BadRequest(EnvTorchError):
    """A request that the standard does not have."""

    http_status = 400


class NotScored(EnvTorchError):
    """The environment does not compare candidates."""

    http_status = 404


@dataclass(slots=True)
class OrsEpisode:
    """What a session's routes remember of its episode."""

    prompt: str
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a call until its outcome is known: the next one is made only if the episode is not over."""


class OrsDoor:
    """The session routes of one server."""

    def __init__(self, sessions: Sessions, tools: AgentTools) -> None:
        self._sessions = sessions
        self._tools = tools
        self._episodes: dict[str, OrsEpisode] = {}
        """By the tokens of their sessions."""
        self._beginning: set[str] = set()
        """The tokens of sessions whose episodes are being begun."""
        self._calls: set[asyncio.Task[str]] = set()
        """The calls under way, whether or not a client still waits for them."""

    def register(self, router: APIRouter) -> None:
        told: dict[str, Any] = {"tags": ["Open Reward Standard"], "route_class_override": DefaultRoute}
        for path, handler in (
            ("/create_session", self.create_session),
            ("/create", self.create),
            ("/ping", self.ping),
            ("/delete", self.delete),
            ("/delete_session", self.delete),
        ):
            router.add_api_route(path, answering_errors(handler), methods=["POST"], **told)
        router.add_api_route("/version", self.version, **told)
        for prefix in ("", "/{env_name}"):
            for name, method, of_environment in (
                ("tools", "GET", self.tools),
                ("task_tools", "GET", self.tools),
                ("prompt", "GET", self.prompt),
                ("messages", "GET", self.messages),
                ("call", "POST", self.call),
                ("score_group", "POST", self.score_group),
            ):
                endpoint = answering_errors(of_environment)
                router.add_api_route(f"{prefix}/{name}", endpoint, methods=[method], **told)

        router.add_api_route("/splits", self.to_environment, methods=["GET"], **told)
        for name in ("tasks", "num_tasks", "task", "task_range"):
            router.add_api_route(f"/{name}", self.to_environment, methods=["POST"], **told)

    async def to_environment(self, request: Request) -> Response:
        """The task routes have the environment's name in their paths."""
        path = (
            f"{request.scope.get('root_path', '')}/{self._tools.name}/{request.url.path.rpartition('/')[2]}"
        )
        return RedirectResponse(path, status_code=308)

    # A session.

    async def create_session(self, request: Request) -> Response:
        """Open a session. The stream's `task_id` is what `X-Session-ID` has from then on."""
        await _require_json_if_any(request)
        session = await self._sessions.open(held=False)
        return _stream(_events(("task_id", session.token), ("end", "")))

    async def create(self, request: Request) -> Response:
        """Begin the session's episode."""
        session = self._session(request)
        asked = await _body(request, CreateRequest)
        self._require_name(asked.env_name)
        if asked.toolset_name is not None:
            raise BadRequest("this server has no toolsets: leave toolset_name out")
        if session.token in self._episodes or session.token in self._beginning:
            raise BadRequest("the session's episode has begun: create another session")
        self._beginning.add(session.token)
        try:
            await self._begin(session, await self._task(asked))
        finally:
            self._beginning.discard(session.token)
        return JSONResponse({"sid": session.token})

    async def _begin(self, session: Session, spec: dict[str, Any]) -> None:
        told = {"task": spec} if spec.keys() >= {"id", "hash"} else spec
        options = _valid(lambda: ResetRequest.model_validate(told)).model_dump(exclude_unset=True)
        encoded: Encoded = await session.call(Call.reset(options, strict=True))
        self._forget_closed()
        self._episodes[session.token] = OrsEpisode(observation_text(read_json(encoded.observation)))

    async def ping(self, request: Request) -> Response:
        """Whether the session lives. It goes on living: a model may think for longer than the lease."""
        await _require_json_if_any(request)
        self._session(request)
        return JSONResponse({"status": "ok"})

    async def delete(self, request: Request) -> Response:
        """End the session. One that has ended already is no error."""
        await _require_json_if_any(request)
        token = request.headers.get(ORS_SESSION_HEADER, "")
        session = self._sessions.by_token(token)
        self._episodes.pop(token, None)
        if session is not None:
            await self._sessions.release(session)
        else:
            require_here(token, self._sessions.replica, request.headers)
        return JSONResponse({"sid": token})

    async def version(self, request: Request) -> Response:
        """Which server this is."""
        return JSONResponse({"version": version("envtorch"), "build_sha": None})

    # Its episode.

    async def tools(self, request: Request) -> Response:
        """The tools that an agent may call."""
        self._require_name(request.path_params.get("env_name"))
        listed = read_json(await self._tools.list_any(self._sessions))["tools"]
        specs = [
            {"name": t["name"], "description": t["description"], "input_schema": t["inputSchema"]}
            for t in listed
        ]
        return JSONResponse(
            {
                "tools": specs,
                "terminal_tool": None,
                "supports_score_group": self._compares,
                "message_block_types": ["text", "image"],
            }
        )

    async def prompt(self, request: Request) -> Response:
        """The first observation."""
        _, episode = self._episode(request)
        return JSONResponse([_text(episode.prompt)])

    async def messages(self, request: Request) -> Response:
        """The first observation, as a conversation."""
        _, episode = self._episode(request)
        return JSONResponse([{"role": "user", "blocks": [_text(episode.prompt)], "detail": None}])

    async def call(self, request: Request) -> Response:
        """Call a tool: take a step."""
        session, episode = self._episode(request)
        asked = await _body(request, CallRequest)
        id = asked.task_id or secrets.token_urlsafe(16)
        return _stream(self._answering(id, lambda: self._act(session, episode, asked, id)))

    async def score_group(self, request: Request) -> Response:
        """Compare candidates, for an environment that has `score_group(candidates)`."""
        session, _ = self._episode(request)
        asked = await _body(request, ScoreGroupRequest)
        id = asked.task_id or secrets.token_urlsafe(16)
        call = Call.with_arguments("tasks", "score_group", asked.candidates)
        if not self._compares:
            raise NotScored("the environment does not implement score_group")

        async def score() -> str:
            scores = read_json(await session.call(call, id=id, digest=_digest(call)))
            return json.dumps({"scores": _scores(scores, len(asked.candidates))})

        return _stream(self._answering(id, score))

    async def _act(self, session: Session, episode: OrsEpisode, asked: CallRequest, id: str) -> str:
        """What came of a call, as the standard has it."""
        call = self._step_of(session, asked)
        if call is None:
            return _refused(f"there is no tool {asked.name!r}", "not_found")
        async with episode.turn:
            if session.is_over and session.ledger.find(id, _digest(call)) is None:
                return _refused("the episode is over", "episode_finished")
            try:
                answer = await session.call(call, id=id, digest=_digest(call))
            except InvalidAction as error:
                return _refused(str(error), "input_validation")
            output = _output(answer) if isinstance(answer, Encoded) else _tool_output(read_json(answer))
            if output is None:
                return _refused(_said(read_json(answer)), None)
            return json.dumps({"ok": True, "output": output})

    def _step_of(self, session: Session, asked: CallRequest) -> Call | None:
        if session.runner.has_tools:
            return Call.with_arguments("tool_result", asked.name, asked.input)
        return Call.step(json.dumps(asked.input).encode(), strict=True) if asked.name == STEP else None

    @property
    def _compares(self) -> bool:
        return hasattr(self._sessions.factory.environment_class, "score_group")

    async def _answering(self, id: str, work: Callable[[], Coroutine[Any, Any, str]]) -> AsyncIterator[bytes]:
        """The `task_id`, signs of life, and the result in pieces. The call goes on if its client leaves."""
        yield _event("task_id", id)
        task = asyncio.ensure_future(work())
        self._calls.add(task)
        task.add_done_callback(self._ended)
        while not task.done():
            await asyncio.wait([task], timeout=QUIET_S)
            if not task.done():
                yield b": still running\n\n"
        try:
            result = task.result()
        except EnvTorchError as error:
            yield _event("error", f"{type(error).__name__}: {error}")
            return
        while len(result) > PIECE:
            # A reader drops spaces at the beginning of a piece.
            cut = next((place for place in range(PIECE, len(result)) if result[place] != " "), len(result))
            yield _event("chunk", result[:cut])
            result = result[cut:]
        yield _event("end", result)

    def _ended(self, task: "asyncio.Task[str]") -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # asyncio complains of one that nobody asked for, as when the client has left

    # What a request means.

    def _session(self, request: Request) -> Session:
        token = request.headers.get(ORS_SESSION_HEADER)
        if not token:
            raise BadRequest(f"{ORS_SESSION_HEADER} header is required")
        session = self._sessions.by_token(token.strip())
        if session is None:
            gone = SessionGone(f"the session of this {ORS_SESSION_HEADER} is gone")
            raise missing(token.strip(), self._sessions.replica, request.headers, gone)
        session.renew()
        return session

    def _episode(self, request: Request) -> tuple[Session, OrsEpisode]:
        self._require_name(request.path_params.get("env_name"))
        session = self._session(request)
        episode = self._episodes.get(session.token)
        if episode is None:
            raise BadRequest("the session has no episode yet: POST /create begins it")
        return session, episode

    def _require_name(self, name: str | None) -> None:
        if name is not None and name.lower() != self._tools.name.lower():
            raise UnknownEnvironment(f"unknown environment {name!r}")

    async def _task(self, asked: CreateRequest) -> dict[str, Any]:
        if asked.task_spec is not None and asked.split is None and asked.index is None:
            return asked.task_spec
        if asked.task_spec is not None or asked.split is None or asked.index is None:
            raise InvalidAction("give either task_spec, or both split and index")
        try:
            found = await self._sessions.ask(
                Call.with_arguments("tasks", "get_task", asked.split, asked.index)
            )
        except EnvTorchError as error:
            if error.details.get("exception") == "IndexError":
                raise InvalidIndex("Invalid task index") from error
            raise
        task = read_json(found)
        if not isinstance(task, dict):
            raise BadRequest("a task is an object with options of reset")
        return task

    def _forget_closed(self) -> None:
        live = {token: one for token, one in self._episodes.items() if self._sessions.by_token(token)}
        self._episodes = live


async def _body(request: Request, kind: type[M]) -> M:
    require_json(request)
    body = await request.body()
    return _valid(lambda: kind.model_validate_json(body))


def _valid(read: Callable[[], M]) -> M:
    """What `read` gives. Raises `InvalidAction` with what is wrong, field by field."""
    try:
        return read()
    except ValidationError as error:
        raise InvalidAction(
            "the request body is not valid", errors=error.errors(include_url=False, include_input=False)
        ) from None


async def _require_json_if_any(request: Request) -> None:
    """Refuse a body that is not JSON, on a route that needs none. Raises `NotJson`.

    Clients announce a type for an empty body, too: what has no body is not refused for it.
    """
    if await request.body():
        require_json(request)


def _digest(call: Call) -> int:
    return hash((call.operation, call.data, call.arguments))


def _text(text: str) -> dict[str, Any]:
    return {"text": text, "detail": None, "type": "text"}


def _refused(why: str, reason: str | None) -> str:
    return json.dumps({"ok": False, "error": why, "reason": reason})


def _output(encoded: Encoded) -> dict[str, Any]:
    """What a step came to."""
    return {
        "blocks": [_text(observation_text(read_json(encoded.observation)))],
        "metadata": None,
        "reward": None if encoded.reward is None else float(encoded.reward),
        "finished": encoded.done,
    }


def _tool_output(result: dict[str, Any]) -> dict[str, Any] | None:
    """What MCP's result of a tool came to; None for a failure of the call itself."""
    if result.get("isError"):
        return None
    meta = result.get("_meta") or {}
    reward = meta.get("envtorch/reward")
    blocks = [
        {"data": part["data"], "mimeType": part["mimeType"], "detail": None, "type": "image"}
        if part.get("type") == "image"
        else _text(part.get("text") or json.dumps(part))
        for part in result["content"]
    ]
    return {
        "blocks": blocks,
        "metadata": None,
        "reward": None if reward is None else float(reward),
        "finished": bool(meta.get(DONE)),
    }


def _scores(scores: Any, candidates: int) -> list[dict[str, Any]]:
    """What `score_group` gave, one object for each candidate. Raises `EnvironmentFailed`."""
    if not isinstance(scores, list) or len(scores) != candidates:
        given = f"{len(scores)} scores" if isinstance(scores, list) else "no list of scores"
        raise EnvironmentFailed(f"score_group returned {given} for {candidates} candidates")
    told = [one if isinstance(one, dict) else {"reward": one} for one in scores]
    return [{**one, "reward": _score(one.get("reward"), place)} for place, one in enumerate(told)]


def _score(reward: Any, place: int) -> float:
    try:
        if isinstance(reward, int | float) and math.isfinite(reward):
            return float(reward)
    except OverflowError:
        pass  # an integer that no float holds
    raise EnvironmentFailed(f"score_group returned a score that is not a finite number, at index {place}")


def _said(result: dict[str, Any]) -> str:
    return "\n".join(str(part.get("text", "")) for part in result["content"])


# Streams of events.


def _stream(events: AsyncIterator[bytes]) -> Response:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _events(*events: tuple[str, str]) -> AsyncIterator[bytes]:
    for name, data in events:
        yield _event(name, data)


def _event(name: str, data: str) -> bytes:
    """An event. No text in `data` begins a line of its own, whatever its reader takes for a line's end."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {name}\n{lines}\n".encode(errors="replace")
