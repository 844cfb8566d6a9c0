"""The composition root: from an environment to an application that serves it."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fastapi import APIRouter, FastAPI

from envtorch.env import EnvironmentSource, EnvSpec, load_object
from envtorch.errors import ConfigurationError
from envtorch.protocol.codec import Codec
from envtorch.server.doors.agent_tools import AgentTools
from envtorch.server.doors.direct_dispatch import DirectDispatch, EnvironmentApp
from envtorch.server.doors.http_routes import HttpDoor
from envtorch.server.doors.mcp_http import McpDoor
from envtorch.server.doors.mcp_rpc import RpcDoor
from envtorch.server.doors.ors_routes import OrsDoor
from envtorch.server.doors.task_routes import TaskDoor
from envtorch.server.doors.websocket import SocketDoor
from envtorch.server.options import ServerOptions
from envtorch.server.security.gate import AccessGate
from envtorch.server.security.hosts import AllowedHosts
from envtorch.server.security.keys import Keys
from envtorch.server.sessions.environment_factory import Factory
from envtorch.server.sessions.registry import Sessions
from envtorch.server.telemetry.tracing import spans
from envtorch.settings import ServerMode, Settings
from envtorch.types import ConcurrencyConfig, ServerCapacityStatus, SessionInfo, State

if TYPE_CHECKING:
    from envtorch.server.runners.process.process_launcher import ProcessLauncher

__all__ = ["HTTPEnvServer", "create_app", "create_fastapi_app"]


class HTTPEnvServer:
    """One environment and all the doors to it.

    `env` is an environment class, a factory, `"module:name"`, or an instance: one shared environment,
    which every session then uses in turn. With `isolation="process"` each session's environment lives in a
    process of its own, loaded there by name. The action and observation classes may be left out where the
    environment class names them: `Environment[MyAction, MyObservation, MyState]`.
    """

    requires_reset: ClassVar[bool | None] = None
    """Whether a step before the first `reset` is refused; None where the environment's class says so."""

    def __init__(
        self,
        env: EnvironmentSource,
        action_cls: type | None = None,
        observation_cls: type | None = None,
        *,
        options: ServerOptions | None = None,
        requires_promise: bool = False,
        **given: Any,
    ) -> None:
        """`options`, or the fields of `ServerOptions` as keywords, say the rest.

        With `requires_promise`, as OpenEnv has it, several sessions are refused for a class that does not say
        `SUPPORTS_CONCURRENT_SESSIONS = True`; without, for one that says `False`.
        """
        chosen = self.options = ServerOptions.of(options, given)
        factory = self._factory = Factory.of(env, requires_promise=requires_promise)
        state = chosen.state_cls if chosen.state_cls is not State else None
        self.spec: EnvSpec[Any, Any, Any] = EnvSpec.of(
            factory.environment_class or factory.make,
            action=action_cls,
            observation=observation_cls,
            state=state,
            reset_observation=chosen.reset_observation_cls,
            name=chosen.name or factory.name,
        )
        if self.requires_reset is not None:
            self.spec = replace(self.spec, requires_reset=self.requires_reset)
        codec = self.codec = Codec(self.spec)
        launcher = self._launcher(chosen.isolation) if chosen.isolation is not None else None
        self.sessions = Sessions(factory, codec, chosen.concurrency(factory), launcher)
        self.mode = ServerMode.SIMULATION
        self.is_locked = False
        self._socket: SocketDoor | None = None
        self.hosts = AllowedHosts()
        self.max_message_bytes = chosen.max_message_bytes or Settings.from_environ().max_message_bytes

    def isolate(self, isolation: str, *, preludes: Sequence[str] = ()) -> None:
        """Put every environment in a process of its own, from the first session on.

        `preludes` name functions that each process calls before it loads anything else.
        """
        self.sessions.isolate(self._launcher(isolation, preludes))

    def make_room(self, sessions: int) -> None:
        """Hold at most that many sessions, whatever was said before; not once there are sessions."""
        if sessions < 1:
            raise ConfigurationError(f"a server has room for one session or more, not {sessions}")
        if self.sessions.active:
            raise ConfigurationError("there are sessions already: say how many there may be before the first")
        self.sessions.make_room(sessions)

    def record(self, directory: Path | str, *, secrets: Iterable[str] = (), required: bool = False) -> None:
        """Write down every episode, from the first session on; `secrets` are names of fields to leave out.

        One file per server process, made when the first call comes; see `envtorch.recording`. With
        `required`, calls are refused while the disk takes no more.
        """
        # Here, so that only a server that records pays for what writes, reads and replays recordings.
        from envtorch.recording.recorder import Recorder, versions_of

        recorder = Recorder(
            directory,
            environment=self.spec.name,
            schemas=self.codec.schemas(),
            versions=versions_of(self.spec.action.__module__),
            secrets=secrets,
            required=required,
        )
        self.sessions.record(recorder)

    def _launcher(self, isolation: str, preludes: Sequence[str] = ()) -> "ProcessLauncher":
        if isolation != "process":
            raise ConfigurationError(f"isolation is 'process' or left out, not {isolation!r}")
        # Here, so that a server with no processes to look after does not load what looks after them.
        from envtorch.server.runners.process.process_launcher import ProcessLauncher

        return ProcessLauncher.of(self._factory, self.spec, preludes=preludes)

    @property
    def active_sessions(self) -> int:
        return self.sessions.active

    @property
    def max_concurrent_envs(self) -> int:
        return self.sessions.capacity

    @property
    def concurrency_config(self) -> ConcurrencyConfig:
        return self.sessions.config

    def get_capacity_status(self) -> ServerCapacityStatus:
        return self.sessions.status()

    def get_session_info(self, session_id: str) -> SessionInfo | None:
        session = self.sessions.find(session_id)
        return session.info if session else None

    def register_routes(
        self, app: FastAPI | APIRouter, mode: ServerMode | str = ServerMode.SIMULATION
    ) -> None:
        """Add every route to an application or router. Its shutdown closes the sessions."""
        mode = self.mode = ServerMode.of(mode)
        if isinstance(app, FastAPI) and not hasattr(app.state, "env_server"):
            app.state.env_server = self
        router = app.router if isinstance(app, FastAPI) else app
        rpc = RpcDoor(self.sessions)
        TaskDoor(self.sessions, self.spec.name).register(router)
        HttpDoor(self.sessions, self.codec).register(router, mode)
        socket = self._socket = SocketDoor(self.sessions, rpc, mode, self.max_message_bytes)
        tools = AgentTools(self.codec, mode)
        mcp = McpDoor(self.sessions, rpc, tools)
        if mode is ServerMode.SIMULATION:
            OrsDoor(self.sessions, tools).register(router)
        router.add_api_route("/mcp", mcp.post, methods=["POST"], tags=["Tools"], summary="Tools, over MCP")
        router.add_api_route("/mcp", mcp.delete, methods=["DELETE"], tags=["Tools"], summary="End a session")
        others = ["GET", "HEAD", "PUT", "PATCH", "OPTIONS"]
        router.add_api_route("/mcp", mcp.other, methods=others, include_in_schema=False)
        router.add_api_websocket_route("/mcp", rpc.endpoint)
        router.add_api_websocket_route("/ws", socket.endpoint)
        _close_on_shutdown(router, self.sessions)

    def lock(self, app: FastAPI, settings: Settings) -> None:
        """Put the gate around an application: token, hosts, origins, size."""
        has_other_middleware = bool(app.user_middleware)
        self.is_locked = bool(settings.token or settings.token_file)
        keys = Keys(settings.token, settings.token_file) if self.is_locked else None
        self.hosts = AllowedHosts(settings.allowed_hosts)
        self.hosts.checks_loopback = not self.is_locked
        gate: dict[str, Any] = {
            "keys": keys,
            "has_page": settings.web_interface if self.options.web is None else self.options.web,
            "allowed_origins": settings.allowed_origins,
            "hosts": self.hosts,
            "max_body_bytes": self.max_message_bytes,
        }
        app.add_middleware(AccessGate, **gate)
        if isinstance(app, EnvironmentApp) and self._socket is not None and not has_other_middleware:
            app.dispatch = DirectDispatch(app, socket=self._socket.endpoint, gate=gate)

    def bound(self, *, locked: bool, exposed: bool) -> None:
        """Note how the server is reached: whether it asks for a token, and whether other machines reach
        it."""
        self.is_locked = self.is_locked or locked
        if self.is_locked or exposed:
            self.hosts.checks_loopback = False

    def add_page(self, app: FastAPI, mode: ServerMode | str | None = None, **options: Any) -> None:
        """Put the web page at `/web`; `options` are those of `create_app` for it. Needs the extra `web`."""
        mount = load_object("envtorch.web:mount")  # by name: the page knows the server, not the other way
        mount(app, self, ServerMode.of(mode or Settings.from_environ().mode), **options)


def _close_on_shutdown(router: APIRouter, sessions: Sessions) -> None:
    around = router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with around(app) as state:
            try:
                yield state
            finally:
                await sessions.close()

    router.lifespan_context = lifespan


def create_fastapi_app(
    env: EnvironmentSource,
    action_cls: type | None = None,
    observation_cls: type | None = None,
    *,
    options: ServerOptions | None = None,
    **given: Any,
) -> FastAPI:
    """A FastAPI application that serves `env`, without a page; see `HTTPEnvServer` for what `env` may be.

    The application is yours: add routes, middleware and mounts as you like.
    """
    server = HTTPEnvServer(env, action_cls, observation_cls, options=options, **given)
    if server.options.record is not None:
        server.record(server.options.record, required=server.options.record_required)
    app = EnvironmentApp(
        title="EnvTorch environment server",
        version="1.0.0",
    )
    settings = Settings.from_environ()
    server.register_routes(app, server.options.mode or settings.mode)
    app.description = _description(server)
    server.lock(app, settings)
    server.sessions.trace(spans(enabled=settings.tracing))
    server.sessions.replica = settings.replica
    app.state.env_server = server
    return app


def _description(server: HTTPEnvServer) -> str:
    """What `/docs` says about the server."""
    if server.mode is ServerMode.PRODUCTION:
        return (
            f"The tools of {server.spec.name}: `POST /mcp`, `WS /mcp`, or tool calls on `WS /ws`. "
            "In production mode there is no `reset`, `step` or `state`."
        )
    return f"Sessions of {server.spec.name}: `POST /reset`, then `POST /step`, or `WS /ws`."


def create_app(
    env: EnvironmentSource,
    action_cls: type | None = None,
    observation_cls: type | None = None,
    *,
    options: ServerOptions | None = None,
    **given: Any,
) -> FastAPI:
    """A FastAPI application that serves `env`: `create_app(MyEnvironment, sessions=8, record="episodes")`.

    `options`, or the fields of `ServerOptions` as keywords, say how; OpenEnv's `max_concurrent_envs` and
    `env_name` are understood as `sessions` and `name`. With `web=True`, or `ENABLE_WEB_INTERFACE`, there is a
    page at `/web`; `gradio_builder(web_manager, action_fields, metadata, is_chat_env, title, quick_start_md)`
    returns a `gr.Blocks` of your own for it: a tab beside the default page, before it (`custom_tab_primary`),
    or in its place (`show_default_tab=False`).
    """
    app = create_fastapi_app(env, action_cls, observation_cls, options=options, **given)
    chosen: ServerOptions = app.state.env_server.options
    if Settings.from_environ().web_interface if chosen.web is None else chosen.web:
        app.state.env_server.add_page(
            app,
            chosen.mode,
            gradio_builder=chosen.gradio_builder,
            custom_tab_name=chosen.custom_tab_name,
            custom_tab_primary=chosen.custom_tab_primary,
            show_default_tab=chosen.show_default_tab,
            title_override=chosen.title_override,
        )
    return app
