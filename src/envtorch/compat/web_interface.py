"""What environments take from OpenEnv's web interface."""

from pathlib import Path
from typing import Any

from fastapi import FastAPI

from envtorch.compat.http_server import create_app
from envtorch.env import Environment
from envtorch.settings import Settings
from envtorch.types import EnvironmentMetadata

__all__ = ["create_web_interface_app", "load_environment_metadata"]


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


def create_web_interface_app(*args: Any, **options: Any) -> FastAPI:
    """`create_app`: whether there is a web page is the server's business."""
    return create_app(*args, **options)
