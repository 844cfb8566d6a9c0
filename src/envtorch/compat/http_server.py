"""OpenEnv's server names, as strict as OpenEnv is: a class or a factory, never an instance."""

import importlib.util
from collections.abc import Callable
from typing import Any, ClassVar

from fastapi import APIRouter, FastAPI

from envtorch import server
from envtorch.compat.exceptions import ConcurrencyConfigurationError
from envtorch.env import Environment
from envtorch.errors import ConfigurationError
from envtorch.server.doors.direct_dispatch import EnvironmentApp
from envtorch.settings import ServerMode, Settings
from envtorch.types import Action, ConcurrencyConfig, Observation, State

__all__ = ["HTTPEnvServer", "create_app", "create_fastapi_app"]

EnvironmentFactory = Callable[[], Environment[Any, Any, Any]]


class HTTPEnvServer(server.HTTPEnvServer):
    """`envtorch.server.HTTPEnvServer` with OpenEnv's signature and its refusals."""

    requires_reset = False  # OpenEnv's server passes a step to an environment that was never reset
    takes_instances: ClassVar[bool] = False
    """Whether one shared environment object may be given in place of a class or a factory."""

    def __init__(
        self,
        env: EnvironmentFactory | Environment[Any, Any, Any],
        action_cls: type | None,
        observation_cls: type | None,
        max_concurrent_envs: int | None = None,
        concurrency_config: ConcurrencyConfig | None = None,
        env_name: str | None = None,
        state_cls: type = State,
        *,
        reset_observation_cls: type | None = None,
    ) -> None:
        if not callable(env) and not self.takes_instances:
            raise TypeError(
                "env must be a callable, an environment class or a factory function, and not an "
                f"instance of {type(env).__name__}"
            )
        self._env_factory = env if callable(env) else lambda: env
        try:
            super().__init__(
                env,
                action_cls or Action,
                observation_cls or Observation,
                requires_promise=True,
                sessions=_room(max_concurrent_envs, concurrency_config),
                concurrency_config=concurrency_config,
                name=env_name,
                state_cls=state_cls,
                reset_observation_cls=reset_observation_cls,
            )
        except ConfigurationError as error:
            if "environment_name" not in error.details:
                raise
            raise ConcurrencyConfigurationError(**error.details, message=error.message) from None
        # Plain HTTP callers of OpenEnv keep no cookie; they get one session to share, and their episode.
        self.sessions.serves_anonymous = True
        self.action_cls = action_cls
        self.observation_cls = observation_cls

    @property
    def is_concurrency_safe(self) -> bool:
        """Whether the environment says that several of it can live in one process."""
        known = self.sessions.factory.environment_class
        made = known or type(self._env_factory())
        return bool(getattr(made, "SUPPORTS_CONCURRENT_SESSIONS", False))

    def register_routes(
        self, app: FastAPI | APIRouter, mode: ServerMode | str = ServerMode.SIMULATION
    ) -> None:
        super().register_routes(app, mode)
        if ServerMode.of(mode) is ServerMode.PRODUCTION and self._may_be_harness():
            from envtorch.compat.harness.door import HarnessDoor  # it needs the extra `mcp`

            router = app.router if isinstance(app, FastAPI) else app
            router.add_api_websocket_route("/harness", HarnessDoor(self.sessions).endpoint)

    def _may_be_harness(self) -> bool:
        """Whether the environment can be a conversation with a harness; of a factory, who knows."""
        made = self.sessions.factory.environment_class
        has_tools = importlib.util.find_spec("fastmcp") is not None
        return has_tools and (
            made is None or any(base.__name__ == "HarnessEnvironment" for base in made.__mro__)
        )


def _room(max_concurrent_envs: int | None, config: ConcurrencyConfig | None) -> int | None:
    """How many sessions OpenEnv has: one, where nothing is said."""
    return 1 if max_concurrent_envs is None and config is None else max_concurrent_envs


def create_fastapi_app(
    env: Callable[[], Environment[Any, Any, Any]],
    action_cls: type | None,
    observation_cls: type | None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    env_name: str | None = None,
    state_cls: type = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: type | None = None,
) -> FastAPI:
    """A FastAPI application that serves the environment; yours to add routes and middleware to."""
    served = HTTPEnvServer(
        env,
        action_cls,
        observation_cls,
        max_concurrent_envs,
        concurrency_config,
        env_name,
        state_cls,
        reset_observation_cls=reset_observation_cls,
    )
    return application(served, mode)


def application(served: HTTPEnvServer, mode: ServerMode | str | None) -> FastAPI:
    """The FastAPI application around a server."""
    app = EnvironmentApp(
        title="OpenEnv Environment HTTP API",
        version="1.0.0",
        description=f"{served.spec.name}, served by EnvTorch on OpenEnv's interface.",
    )
    settings = Settings.from_environ()
    served.register_routes(app, mode or settings.mode)
    served.lock(app, settings)
    app.state.env_server = served
    return app


def create_app(
    env: Callable[[], Environment[Any, Any, Any]],
    action_cls: type | None,
    observation_cls: type | None,
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    gradio_builder: Callable[..., Any] | None = None,
    custom_tab_name: str = "Custom",
    custom_tab_primary: bool = False,
    show_default_tab: bool = True,
    title_override: str | None = None,
    state_cls: type = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: type | None = None,
) -> FastAPI:
    """`create_fastapi_app`, and OpenEnv's web page where `ENABLE_WEB_INTERFACE` asks for it."""
    app = create_fastapi_app(
        env,
        action_cls,
        observation_cls,
        max_concurrent_envs,
        concurrency_config,
        env_name,
        state_cls,
        mode=mode,
        reset_observation_cls=reset_observation_cls,
    )
    add_page(
        app,
        mode,
        gradio_builder=gradio_builder,
        custom_tab_name=custom_tab_name,
        custom_tab_primary=custom_tab_primary,
        show_default_tab=show_default_tab,
        title_override=title_override,
    )
    return app


PAGE_OPTIONS = ("custom_tab_name", "custom_tab_primary", "show_default_tab", "title_override")


def add_page(app: FastAPI, mode: ServerMode | str | None, **options: Any) -> None:
    """Add OpenEnv's web page where `ENABLE_WEB_INTERFACE` asks for it."""
    if Settings.from_environ().web_interface:
        title = display_title(app.state.env_server.spec.name)
        app.state.env_server.add_page(app, mode, title=title, **options)


def display_title(name: str) -> str:
    """What OpenEnv writes on the browser's tab."""
    return f"OpenEnv Agentic Environment: {name}"
