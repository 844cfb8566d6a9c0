"""The server names of OpenEnv's first releases, which also took an environment object.

They are what `core.env_server` has, and what `envtorch serve` gives to an environment whatever it imports, so
that environments written for any release run. The names that OpenEnv has today stay strict otherwise.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from fastapi import FastAPI

from envtorch.compat import http_server
from envtorch.env import Environment
from envtorch.types import ConcurrencyConfig

__all__ = ["HTTPEnvServer", "create_app", "create_fastapi_app"]

EnvironmentOrFactory = Callable[[], Environment[Any, Any, Any]] | Environment[Any, Any, Any]


class HTTPEnvServer(http_server.HTTPEnvServer):
    """`HTTPEnvServer` that also takes an object: one environment, which every session shares."""

    takes_instances: ClassVar[bool] = True


def create_fastapi_app(
    env: EnvironmentOrFactory,
    action_cls: type | None = None,
    observation_cls: type | None = None,
    **options: Any,
) -> FastAPI:
    """OpenEnv's `create_fastapi_app`, for an environment class, a factory or one shared object.

    `session_timeout`, which OpenEnv no longer takes, is the seconds after which an idle session ends.
    """
    mode = options.pop("mode", None)
    served = HTTPEnvServer(env, action_cls, observation_cls, **_timed(options))
    return http_server.application(served, mode)


def create_app(
    env: EnvironmentOrFactory,
    action_cls: type | None = None,
    observation_cls: type | None = None,
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    gradio_builder: Callable[..., Any] | None = None,
    **options: Any,
) -> FastAPI:
    """OpenEnv's `create_app`, for an environment class, a factory or one shared object."""
    page = {name: options.pop(name) for name in http_server.PAGE_OPTIONS if name in options}
    mode = options.get("mode")
    app = create_fastapi_app(
        env,
        action_cls,
        observation_cls,
        env_name=env_name,
        max_concurrent_envs=max_concurrent_envs,
        concurrency_config=concurrency_config,
        **options,
    )
    http_server.add_page(app, mode, gradio_builder=gradio_builder, **page)
    return app


def _timed(options: dict[str, Any]) -> dict[str, Any]:
    timeout = options.pop("session_timeout", None)
    if timeout is None or options.get("concurrency_config") is not None:
        return options
    sessions = options.pop("max_concurrent_envs", None) or 1
    config = ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=timeout)
    return {**options, "max_concurrent_envs": None, "concurrency_config": config}
