"""What environments take from OpenEnv's web interface. Gradio is loaded with the first name that needs it."""

from pathlib import Path
from typing import Any

from fastapi import FastAPI

from envtorch.compat.http_server import create_fastapi_app, display_title
from envtorch.env import Environment
from envtorch.extras import missing_extra
from envtorch.settings import Settings, silence_gradio
from envtorch.types import ConcurrencyConfig, EnvironmentMetadata

__all__ = ["create_web_interface_app", "get_gradio_display_title", "load_environment_metadata"]

_NEED_GRADIO = frozenset(
    {
        "OPENENV_GRADIO_CSS",
        "OPENENV_GRADIO_THEME",
        "ActionLog",
        "EpisodeState",
        "WebInterfaceManager",
        "build_gradio_app",
        "get_quick_start_markdown",
        "gr",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _NEED_GRADIO:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    silence_gradio()
    try:
        from envtorch.compat import web_manager
    except ModuleNotFoundError as error:
        raise missing_extra("web", f"{name} needs Gradio") from error
    return getattr(web_manager, name)


def load_environment_metadata(env: Any, env_name: str | None = None) -> EnvironmentMetadata:
    """What an environment, or its class, tells of itself, with its README where one is found."""
    name = str(env_name or getattr(env, "__name__", type(env).__name__))
    if isinstance(env, Environment):
        metadata = env.get_metadata()
    else:
        metadata = EnvironmentMetadata(name=name, description=f"{name} environment", version="1.0.0")
    if metadata.readme_content is None:
        metadata = metadata.model_copy(update={"readme_content": _readme(env_name)})
    return metadata


def _readme(env_name: str | None) -> str | None:
    named = [Path("envs", env_name, "README.md")] if env_name else []
    told = Settings.from_environ().readme_path
    candidates = [*([Path(told)] if told else []), Path("/app/README.md"), *named]
    found = next((path for path in candidates if path.is_file()), None)
    return found.read_text(encoding="utf-8", errors="replace") if found else None


def get_gradio_display_title(
    metadata: EnvironmentMetadata | None, fallback: str = "OpenEnv Environment"
) -> str:
    """What OpenEnv writes on the browser's tab."""
    return display_title(metadata.name if metadata else fallback)


def create_web_interface_app(
    env: Any,
    action_cls: type | None,
    observation_cls: type | None,
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    gradio_builder: Any = None,
    custom_tab_name: str = "Custom",
    custom_tab_primary: bool = False,
    show_default_tab: bool = True,
    title_override: str | None = None,
    **options: Any,
) -> FastAPI:
    """An application with its web page, whatever `ENABLE_WEB_INTERFACE` says."""
    app = create_fastapi_app(
        env, action_cls, observation_cls, max_concurrent_envs, concurrency_config, env_name, **options
    )
    app.state.env_server.add_page(
        app,
        options.get("mode"),
        title=display_title(app.state.env_server.spec.name),
        gradio_builder=gradio_builder,
        custom_tab_name=custom_tab_name,
        custom_tab_primary=custom_tab_primary,
        show_default_tab=show_default_tab,
        title_override=title_override,
    )
    return app
