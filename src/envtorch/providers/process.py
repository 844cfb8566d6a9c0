"""Servers as child processes: no engine, no image, up in the time Python takes to import the application."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.providers.child import SCRIPTS, listen, start_child
from envtorch.providers.provider_base import ContainerProvider
from envtorch.providers.provider_options import checked_environment, checked_port, read_options
from envtorch.settings import inherited_environment

__all__ = ["ProcessOptions", "ProcessProvider"]

SERVE = "envtorch.server.serve:serve"


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The options of `ProcessProvider.start_container`."""

    python: str = sys.executable
    """The interpreter; it needs uvicorn and EnvTorch."""

    directory: str | None = None
    """Where the server runs, and where modules are looked for first; this process's own by default."""

    host: str = "127.0.0.1"


class ProcessProvider(ContainerProvider):
    """Runs an ASGI application in a child process on this machine.

    The "image" is the application's name: `start_container("my_package.app:app")`. The child sees only
    what a program needs of this process's environment variables (`PATH`, `HOME`, the locale, ...) and
    `env_vars`. It ends, with everything it started, when its owner does: also after a `kill -9`.

    A server that another program sends SIGTERM drains as `envtorch serve` does, within `ENVTORCH_FINISH` and
    `ENVTORCH_DRAIN` of `env_vars`. `stop_container` gives running calls a second.
    """

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        chosen = read_options(ProcessOptions, options)
        environment = {"PYTHONUNBUFFERED": "1", **inherited_environment(), **checked_environment(env_vars)}
        port = checked_port(port)
        if not all(image.partition(":")):
            raise ConfigurationError(
                f"{image!r} names no application: write it as 'package.module:attribute'"
            )
        if chosen.directory is not None and not os.path.isdir(chosen.directory):
            raise ConfigurationError(f"there is no directory {chosen.directory!r} to run the server in")
        self._refuse_second()
        server = start_child(
            [chosen.python, str(SCRIPTS / "run_app.py"), "{fd}", image, SERVE],
            listener=listen(chosen.host, port),
            environment=environment,
            directory=chosen.directory,
        )
        return self._adopt(server)
