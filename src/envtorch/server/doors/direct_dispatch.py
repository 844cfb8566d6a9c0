"""An application whose routes of an episode are called without the framework's stack.

FastAPI describes these routes and holds them in its router. A request for one of them passes the same gate as
every other and is then answered: to pass it through the framework's own middleware, match it against every
route and resolve dependencies would cost more than a step.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.routing import BaseRoute, Match, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from envtorch.server.doors.http_routes import PlainRoute
from envtorch.server.security.gate import AccessGate

__all__ = ["DirectDispatch", "EnvironmentApp"]

ROUTE = "envtorch.route"
"""In a scope: the route that answers it."""


class FoundRoute(NamedTuple):
    """A route, and where it stands in the router."""

    place: int
    route: BaseRoute


class DirectDispatch:
    """Answers requests for our own routes of one application, behind a gate of the same options.

    It takes a request only if the application would do the same with it: its router would choose the same
    route, which has no dependencies, and nobody has added middleware or a handler of errors, or mounted the
    application in another.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        socket: Callable[[WebSocket], Awaitable[None]],
        gate: Mapping[str, Any],
    ) -> None:
        """The middleware that `app` has now is the gate of these options, and no other."""
        self._of = app
        self._socket = socket
        self._middleware = list(app.user_middleware)
        self._handlers = dict(app.exception_handlers)
        self._gate = AccessGate(self._answer, **gate)
        self._paths = {path for route in app.router.routes if (path := self._path_of(route)) is not None}
        self._found: dict[tuple[str, str], FoundRoute] = {}

    def _path_of(self, route: BaseRoute) -> str | None:
        """The path of a route that may be answered here."""
        if getattr(route, "dependencies", ()):
            return None
        is_socket = isinstance(route, WebSocketRoute) and route.endpoint == self._socket
        return route.path if is_socket or type(route) is PlainRoute else None  # type: ignore[attr-defined]

    def takes(self, scope: Scope) -> bool:
        """Whether to answer a request here."""
        if scope.get("path") not in self._paths:
            return False
        if self._of.user_middleware != self._middleware or self._of.exception_handlers != self._handlers:
            return False
        route = None if scope.get("root_path") or self._of.root_path else self._route(scope)
        scope[ROUTE] = route
        return route is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that `takes` has taken."""
        await self._gate(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = scope[ROUTE]
        if isinstance(route, PlainRoute):
            await route.handle(scope, receive, send)
        else:
            await self._socket(WebSocket(scope, receive, send))

    def _route(self, scope: Scope) -> BaseRoute | None:
        """Our own route for a request, if it is the first that matches."""
        asked = scope.get("method", "websocket"), scope["path"]
        found, routes = self._found.get(asked), self._of.router.routes
        if found is not None and found.place < len(routes) and routes[found.place] is found.route:
            return found.route
        routed = {**scope, "router": self._of.router}
        for index, route in enumerate(routes):
            if route.matches(routed)[0] is Match.FULL:
                if self._path_of(route) is None:
                    return None
                self._found[asked] = FoundRoute(index, route)
                return route
        return None


class EnvironmentApp(FastAPI):
    """A FastAPI application with a `DirectDispatch` in front."""

    dispatch: DirectDispatch | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.dispatch is not None and self.dispatch.takes(scope):
            await self.dispatch(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
