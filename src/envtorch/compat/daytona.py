"""`DaytonaProvider` as OpenEnv spells it: Dockerfiles are registered first, and failures have its words."""

import time as time  # OpenEnv's tests silence the sleeps of this module through it
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from envtorch.errors import ConfigurationError, NotReady, ProviderFailed, ServerExited
from envtorch.providers import daytona
from envtorch.providers.daytona import DaytonaServer, read_dockerfile
from envtorch.providers.recipes import command_in, top_level_fields, without_mounts

__all__ = ["DaytonaProvider"]

_PREFIX = "dockerfile:"


class NoSandbox(ProviderFailed, RuntimeError):
    """There is nothing to speak of yet."""


class ServerDied(ServerExited, RuntimeError):
    """The server ended before it was healthy, as OpenEnv's callers catch it."""


class DaytonaProvider(daytona.DaytonaProvider):
    """Ours, with the names that OpenEnv's users call and its tests look at."""

    _dockerfile_registry: ClassVar[dict[str, dict[str, str | None]]] = {}

    strip_buildkit_syntax = staticmethod(without_mounts)
    _parse_dockerfile_cmd = staticmethod(command_in)

    @staticmethod
    def _parse_app_field(content: str) -> str | None:
        try:
            return top_level_fields(content, place="openenv.yaml").get("app")
        except ConfigurationError:
            return None

    @classmethod
    def image_from_dockerfile(cls, dockerfile_path: str, context_dir: str | None = None) -> str:
        """Look at a Dockerfile now, and give the name under which `start_container` takes it."""
        path = Path(dockerfile_path).resolve()
        text, context = read_dockerfile(path, Path(context_dir).resolve() if context_dir else None)
        cls._dockerfile_registry[str(path)] = {
            "stripped_content": without_mounts(text),
            "context_dir": str(context),
            "server_cmd": command_in(text),
        }
        return f"{_PREFIX}{path}"

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        if image.startswith(_PREFIX):
            known = self._dockerfile_registry.get(image.removeprefix(_PREFIX))
            if known is None:
                raise ValueError(
                    f"No registered Dockerfile metadata for {image!r}: call image_from_dockerfile first"
                )
            options["context_dir"] = known["context_dir"]
        return super().start_container(image, port, env_vars, **options)

    def wait_for_ready(self, base_url: str, timeout_s: float = 120.0) -> None:
        try:
            super().wait_for_ready(base_url, timeout_s)
        except ServerExited as error:
            raise ServerDied(f"Server process died: {error.message}", **error.details) from error
        except NotReady as error:
            raise NotReady(f"the sandbox did not become ready: {error.message}", **error.details) from error

    def refresh_preview_url(self) -> str:
        if self._sandbox is None:
            raise NoSandbox("No active sandbox: start one first")
        return super().refresh_preview_url()

    @property
    def _daytona(self) -> Any:
        return self._client

    @property
    def _sandbox(self) -> Any:
        return self._server.sandbox if isinstance(self._server, DaytonaServer) else None

    @property
    def _preview_url(self) -> str | None:
        return self.base_url
