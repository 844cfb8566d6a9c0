"""The HTTP door: `/reset`, `/step`, `/state` with a session behind them, and what a server tells of itself.

`POST /reset` answers with `EnvTorch-Session`, as header and as cookie; send either back and the
episode goes on. A server with room for one session also serves callers who send neither.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Mount
from starlette.types import Receive, Scope, Send

from envtorch.errors import EnvironmentFailed, EnvTorchError, InvalidAction, ProtocolError, SessionLost
from envtorch.protocol.calls import Call
from envtorch.protocol.codec import Codec
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.messages import invalid, read_json, write_json
from envtorch.server.doors.http_bodies import (
    HealthResponse,
    ObservationResponse,
    ResetRequest,
    SchemaResponse,
    StepOptions,
    StepRequest,
)
from envtorch.server.sessions.other_replicas import missing, require_here
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from envtorch.settings import ServerMode
from envtorch.types import EnvironmentMetadata

if TYPE_CHECKING:
    from envtorch.server.telemetry.exposition import Metrics

__all__ = ["SESSION_HEADER", "HttpDoor", "answering_errors", "error_response", "require_json"]

logger = logging.getLogger(__name__)

SESSION_HEADER = "EnvTorch-Session"

CLOSING_S = 10.0
"""How long a question about the environment waits for sessions that are closing."""

UNHEALTHY_S = 30.0
"""How long `/health` remembers that no environment could be built, before it tries to build one again."""

P = ParamSpec("P")
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """Why no environment could be built, and when that was seen."""

    since: float
    detail: str


class SessionRequired(ProtocolError):
    """The caller must say which session it means."""

    http_status = 409


def error_response(error: EnvTorchError) -> Response:
    """An error as HTTP tells it."""
    if isinstance(error, InvalidAction) and error.errors:
        body: dict[str, Any] = {"detail": error.errors}
    else:
        body = {"detail": error.message, "code": error.code}
    headers = {"Retry-After": "1"} if error.http_status == 503 else None
    return Response(write_json(body), error.http_status, headers, media_type="application/json")


class NotJson(ProtocolError):
    """The body is announced as something else than JSON."""

    http_status = 415


def require_json(request: Request) -> None:
    """Refuse a body that is announced as anything but JSON. Raises `NotJson`.

    A page of another site can have a browser send text or a form without asking the server first, but not
    JSON.
    """
    kind = request.headers.get("content-type")
    if kind is None:
        return
    name = kind.partition(";")[0].strip().lower()
    if not (name == "application/json" or (name.startswith("application/") and name.endswith("+json"))):
        raise NotJson(f"the body must be JSON, and announced as application/json, not as {name[:100]!r}")


def answering_errors(
    handler: Callable[P, Awaitable[Response]],
) -> Callable[P, Awaitable[Response]]:
    """A handler whose errors of ours are answered, and not left to the application around it."""

    @functools.wraps(handler)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> Response:
        try:
            return await handler(*args, **kwargs)
        except EnvTorchError as error:
            return error_response(error)

    return guarded


class PlainRoute(APIRoute):
    """A route that FastAPI describes and does not run: its endpoint takes a request and gives a response.

    One with dependencies, which an author may give to a router or an application, is left to FastAPI.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.dependencies or (self.methods and scope["method"] not in self.methods):
            await super().handle(scope, receive, send)  # which answers 405 to another method
            return
        try:
            response: Response = await self.endpoint(Request(scope, receive))
        except ClientDisconnect:
            return  # in the middle of its body: there is nobody to answer
        await response(scope, receive, send)


class DefaultRoute(PlainRoute):
    """A route that gives way to an author's own of the same path, also to one that was added later."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if YIELDING in scope:
            return Match.NONE, {}
        match, child_scope = super().matches(scope)
        if match is Match.FULL and _is_taken({**scope, YIELDING: True}):
            return Match.NONE, {}
        return match, child_scope


YIELDING = "envtorch.yielding"
"""In a scope: which route there is beside the default ones is being asked."""


def _is_taken(scope: Scope) -> bool:
    """Whether a route of the author takes this request. Mounts do not count: they may take every path."""
    routes = [route for route in scope["router"].routes if not isinstance(route, Mount)]
    return any(route.matches(scope)[0] is Match.FULL for route in routes)


class HttpDoor:
    """The routes of one server."""

    def __init__(self, sessions: Sessions, codec: Codec[Any, Any, Any]) -> None:
        self._sessions = sessions
        self._codec = codec
        self._unhealthy: Unhealthy | None = None
        self._unclaimed: dict[str, Session] = {}
        """Sessions that /reset opened, by their tokens, which no request has carried since."""

    def register(self, router: APIRouter, mode: ServerMode) -> None:
        """Add the routes. In production mode the simulation's controls are not among them."""
        if mode is ServerMode.SIMULATION:
            self._register_control(router)
        told: dict[str, Any] = {"tags": ["Environment Info"], "route_class_override": PlainRoute}
        router.add_api_route(
            "/metadata",
            answering_errors(self.metadata),
            response_model=EnvironmentMetadata,
            summary="What the environment tells of itself",
            **told,
        )
        router.add_api_route(
            "/schema",
            answering_errors(self.schema),
            response_model=SchemaResponse,
            summary="JSON schemas of action, observation and state",
            **told,
        )
        probe: dict[str, Any] = {"tags": ["Health"], "route_class_override": PlainRoute}
        router.add_api_route(
            "/health",
            self.health,
            response_model=HealthResponse,
            response_model_exclude_none=True,
            summary="Whether an environment can be built",
            **probe,
        )
        probe["route_class_override"] = DefaultRoute
        router.add_api_route("/ready", self.ready, summary="Whether a session would be opened", **probe)
        router.add_api_route("/live", self.live, summary="Whether the server answers at all", **probe)
        router.add_api_route("/metrics", self.metrics, summary="Numbers for Prometheus", **probe)

    def _register_control(self, router: APIRouter) -> None:
        control: dict[str, Any] = {"tags": ["Environment Control"], "methods": ["POST"]}
        observed = {**control, "response_model": ObservationResponse, "route_class_override": PlainRoute}
        router.add_api_route(
            "/step",
            answering_errors(self.step),
            summary="Take one action",
            openapi_extra=_body_of(StepRequest, required=True),
            **observed,
        )
        router.add_api_route(
            "/reset",
            answering_errors(self.reset),
            summary="Begin an episode",
            openapi_extra=_body_of(ResetRequest, required=False),
            **observed,
        )
        router.add_api_route(
            "/state",
            answering_errors(self.state),
            summary="Where the episode stands",
            tags=["State Management"],
            response_model=self._codec.spec.state,
            route_class_override=PlainRoute,
        )
        router.add_api_route(
            "/close",
            answering_errors(self.close),
            summary="End the session",
            route_class_override=DefaultRoute,
            **control,
        )

    # An episode.

    async def reset(self, request: Request) -> Response:
        """Begin an episode, in the session that the caller names or in a new one.

        In a new one also where the session is another replica's: nothing is lost by that, and a proxy that
        knows that replica no longer would never reach it.
        """
        require_json(request)
        body = await _body_of_request(request)
        asked = _read(ResetRequest, body) if body.strip() not in (b"", b"null") else ResetRequest()
        named = self._named(request)
        session = named or await self._new_session()
        options = asked.model_dump(exclude_unset=True)
        try:
            encoded = await _once(session, options.get("request_id"), Call.reset(options))
        except BaseException:
            if named is None:
                await self._give_up(session)
            raise
        return self._observed(session, encoded)

    async def step(self, request: Request) -> Response:
        """Take one action in the caller's session."""
        require_json(request)
        action, options = _read_step(await _body_of_request(request))
        session = await self._session(request)
        call = Call.step(action, keywords=options.model_dump(exclude_unset=True))
        return self._observed(session, await _once(session, options.request_id, call, options.timeout_s))

    async def state(self, request: Request) -> Response:
        """Where the caller's episode stands: every field, whatever class the state has."""
        session = await self._session(request)
        state = await session.call(Call("state"))
        return Response(state, media_type="application/json")

    async def close(self, request: Request) -> Response:
        """End the caller's session and free its slot."""
        session = self._named(request)
        if session is not None:
            await self._sessions.release(session)
        else:
            require_here(_token(request) or "", self._sessions.replica, request.headers)
        response = JSONResponse({"closed": session is not None})
        response.delete_cookie(SESSION_HEADER)
        return response

    def _observed(self, session: Session, encoded: Encoded) -> Response:
        token = session.token.encode()
        response = Response(encoded.http_body(), media_type="application/json")
        response.raw_headers += [
            (b"envtorch-session", token),
            (b"set-cookie", b"EnvTorch-Session=%b; HttpOnly; Path=/; SameSite=strict" % token),
        ]
        return response

    # Which session a request means.

    def _named(self, request: Request) -> Session | None:
        """The session whose token the request carries, if it still lives."""
        session = self._sessions.by_token(_token(request) or "")
        if session is not None:
            self._unclaimed.pop(session.token, None)
            self._sessions.claim(session)
        return session

    async def _new_session(self) -> Session:
        if self._sessions.serves_anonymous:
            return await self._sessions.anonymous()
        session = await self._sessions.open(held=False)
        if len(self._unclaimed) > self._sessions.capacity:
            self._meant()  # forgets those that are over
        self._unclaimed[session.token] = session
        return session

    async def _give_up(self, session: Session) -> None:
        """End a new session whose first reset failed: its caller is not told the token."""
        if not self._sessions.serves_anonymous:
            self._unclaimed.pop(session.token, None)
            await self._sessions.release(session, "its first reset failed")

    def _meant(self) -> Session | None:
        """The session that a caller means who names none: the only one that nobody has named so far."""
        live = {token: one for token, one in self._unclaimed.items() if self._sessions.by_token(token) is one}
        self._unclaimed = live
        return next(iter(live.values())) if len(live) == 1 else None

    def _missing(self, request: Request) -> EnvTorchError:
        gone = SessionLost(f"the session of this {SESSION_HEADER} is gone; POST /reset opens one")
        return missing(_token(request) or "", self._sessions.replica, request.headers, gone)

    async def _session(self, request: Request) -> Session:
        if _token(request) is not None:
            session = self._named(request)
            if session is None:
                raise self._missing(request)
            return session
        if self._sessions.serves_anonymous:
            return await self._sessions.anonymous()
        meant = self._meant()
        if meant is not None:
            return meant
        if not self._unclaimed:
            raise SessionRequired(
                "there is no session for this request: call POST /reset first, and send back its "
                f"{SESSION_HEADER} header or cookie"
            )
        raise SessionRequired(
            f"several sessions are open: send the {SESSION_HEADER} header, or the cookie, that POST /reset "
            "answered with"
        )

    # What the server tells of itself.

    async def metadata(self, request: Request) -> Response:
        """Name, description and version, as the environment tells them."""
        return Response(await self._ask(Call("metadata")), media_type="application/json")

    async def schema(self, request: Request) -> Response:
        """JSON schemas of everything that travels."""
        schemas = self._codec.schemas()
        with suppress(EnvironmentFailed):  # an environment may have no state before its first reset
            schemas["state"] = read_json(await self._ask(Call("state_schema")))
        return JSONResponse(schemas)

    async def _ask(self, call: Call) -> Any:
        """What some environment answers; another one, where that one's session is closing."""
        deadline = time.monotonic() + CLOSING_S
        while True:
            try:
                return await self._sessions.ask(call)
            except SessionLost:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.01)  # it is no longer found when it has closed

    async def ready(self, request: Request) -> Response:
        """200 when the server would open a session, 503 and the reason when it would not.

        A recording that cannot be written is told here either way; it makes the server unready only where
        every call has to be recorded.
        """
        recorder, stuck = self._sessions.recorder, self._sessions.stuck
        told: dict[str, Any] = {"stuck": stuck} if stuck else {}
        told |= {} if recorder is None or recorder.problem is None else {"recording": recorder.problem}
        if recorder is not None and recorder.refuses_calls:
            return JSONResponse({"ready": False, "detail": "recording failed"} | told, status_code=503)
        if self._sessions.is_leaving:
            return JSONResponse({"ready": False, "detail": "draining"}, status_code=503)
        if self._sessions.slots.is_full:
            return JSONResponse({"ready": False, "detail": "full"} | told, status_code=503)
        return JSONResponse({"ready": True} | told)

    async def live(self, request: Request) -> Response:
        """200 and the number of sessions, as long as the event loop turns. A server that does not answer is
        to be restarted, and one without sessions may be stopped."""
        return JSONResponse({"live": True, "sessions": self._sessions.active})

    async def metrics(self, request: Request) -> Response:
        """Numbers for Prometheus."""
        return Response(self._metrics.text(), media_type=self._metrics.content_type)

    @cached_property
    def _metrics(self) -> "Metrics":
        from envtorch.server.telemetry.exposition import Metrics

        sessions = self._sessions
        return Metrics(
            sessions.meter,
            sessions.phases,
            lambda: sessions.capacity,
            lambda: sessions.slots.waiting,
            lambda: sessions.stuck,
            sessions.recorder,
        )

    async def health(self, request: Request) -> Response:
        """200 when an environment can be built, 503 and the reason when not."""
        now = time.monotonic()
        if self._unhealthy is None or now - self._unhealthy.since >= UNHEALTHY_S:
            self._unhealthy = await self._examine(now)
        if self._unhealthy is None:
            return JSONResponse({"status": "healthy"})
        return JSONResponse({"status": "unhealthy", "detail": self._unhealthy.detail}, status_code=503)

    async def _examine(self, now: float) -> "Unhealthy | None":
        try:
            await self._sessions.spare()
        except EnvTorchError as error:
            reason = error.details.get("reason")
            return Unhealthy(now, f"{error.message} {reason}" if reason else error.message)
        return None


async def _body_of_request(request: Request) -> bytes:
    """The body, which mostly comes in one piece. Raises `ClientDisconnect`."""
    parts: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _read(model: type[M], body: bytes) -> M:
    """A body as a value of `model`. Raises `InvalidAction` with what is wrong, field by field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(invalid(error).errors) from None


def _read_step(body: bytes) -> tuple[bytes, StepOptions]:
    """The action of a `/step` request, still encoded, and its other fields."""
    try:
        fields = _read_fields(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _invalid([{"type": "json_invalid", "loc": (), "msg": f"JSON decode error: {error}"}]) from None
    action = bytes(fields.pop("action", b""))
    if action[:1] != b"{":
        _read(StepRequest, body)
    if not fields:
        return action, _NO_OPTIONS
    return action, _read(StepOptions, msgspec.json.encode(fields))


_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NO_OPTIONS = StepOptions()


def _invalid(errors: Sequence[Any]) -> InvalidAction:
    found = [{**error, "loc": ("body", *error["loc"])} for error in errors]
    for error in found:
        error.pop("url", None)  # FastAPI's own answers have none
    return InvalidAction("the request body is not valid", errors=found)


def _body_of(model: type[BaseModel], *, required: bool) -> dict[str, Any]:
    """How OpenAPI describes a JSON body."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


async def _once(
    session: Session, request_id: str | None, call: Call, timeout_s: float | None = None
) -> Encoded:
    """What came of a call; with a `request_id`, what came of it the first time."""
    digest = hash((call.operation, call.data))
    encoded: Encoded = await session.call(call, id=request_id, digest=digest, timeout_s=timeout_s)
    return encoded


def _token(request: Request) -> str | None:
    return request.headers.get(SESSION_HEADER) or request.cookies.get(SESSION_HEADER)
