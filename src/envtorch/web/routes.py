"""OpenEnv's routes beside the page: `/web/reset`, `/web/step`, `/web/state`, `/web/metadata`, `WS /ws/ui`.

Whoever calls them shares one session, apart from the page's visitors, who have their own.
"""

from typing import Annotated, Any

from fastapi import Body, FastAPI
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from envtorch.server.doors.http_routes import answering_errors
from envtorch.types import EnvironmentMetadata
from envtorch.web.manager import WebManager

__all__ = ["WebRoutes"]


class WebRoutes:
    """The routes of one page."""

    def __init__(self, manager: WebManager) -> None:
        self._manager = manager

    def register(self, app: FastAPI) -> None:
        """Add the routes. An application's own `/` is registered first or not at all, and wins."""
        add = app.router.add_api_route
        add("/", self.home, include_in_schema=False)
        add("/web", self.home, include_in_schema=False)
        told: dict[str, Any] = {"tags": ["Web page"]}
        add("/web/metadata", self.metadata, response_model=EnvironmentMetadata, **told)
        add("/web/reset", answering_errors(self.reset), methods=["POST"], **told)
        add("/web/step", answering_errors(self.step), methods=["POST"], **told)
        add("/web/state", answering_errors(self.state), **told)
        app.router.add_api_websocket_route("/ws/ui", self.watch)

    async def home(self) -> Response:
        """The page, with the slash that its own addresses are relative to."""
        return RedirectResponse("/web/")

    async def metadata(self) -> EnvironmentMetadata:
        """What the page tells of the environment."""
        return self._manager.metadata

    async def reset(self, body: Annotated[dict[str, Any] | None, Body()] = None) -> Response:
        """Begin an episode in the shared session."""
        return JSONResponse(await self._manager.reset_environment(body))

    async def step(self, body: Annotated[dict[str, Any], Body()]) -> Response:
        """Take one action in the shared session: `{"action": {...}}`, or `{"message": ...}` to a chat."""
        if "message" in body:
            return JSONResponse(await self._manager.step_message(body["message"]))
        return JSONResponse(await self._manager.step_environment(body.get("action", {})))

    async def state(self) -> Response:
        """Where the shared session's episode stands; 409 when the environment cannot tell yet."""
        try:
            return JSONResponse(await self._manager.state())
        except RuntimeError as error:
            return JSONResponse({"detail": str(error)}, status_code=409)

    async def watch(self, websocket: WebSocket) -> None:
        """Tell of every change until the listener leaves."""
        await self._manager.connect_websocket(websocket)
        try:
            while True:
                await websocket.receive_text()
        except WebSocketDisconnect:
            await self._manager.disconnect_websocket(websocket)
