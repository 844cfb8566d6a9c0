"""What runs on a node of a Ray cluster for one replica: a server as a child process of the actor."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from envtorch.env import load_object
from envtorch.providers.process import ProcessProvider
from envtorch.providers.provider_base import Phase, Status

__all__ = ["ReplicaHost"]


class ReplicaHost:
    """One server on this node. It ends with the actor's process, however that ends.

    Plain Python: `RayProvider` makes an actor of it.
    """

    def __init__(self) -> None:
        self._provider = ProcessProvider()

    def address(self) -> str:
        """The address of this node."""
        found: str = load_object("ray.util:get_node_ip_address")()
        return found

    def start(
        self,
        image: str,
        port: int | None,
        env_vars: Mapping[str, str],
        host: str,
        options: Mapping[str, Any],
    ) -> str:
        """Start the server on the address of this node. Modules are found where this process finds them:
        Ray puts the code of a `runtime_env` there."""
        path = os.pathsep.join(entry or "." for entry in sys.path)
        environment = {"PYTHONPATH": path, **env_vars}
        return self._provider.start_container(image, port, environment, host=host, **options)

    def status(self) -> tuple[str, str, int | None]:
        """The phase, what is known of it, and the exit code."""
        found = self._provider.status()
        return found.phase.value, found.detail, found.exit_code

    def logs(self, tail: int) -> str:
        return self._provider.logs(tail)

    def stop(self) -> str:
        """End the server; the last lines it wrote."""
        self._provider.close()
        return self._provider.logs(100)


def status_of(told: tuple[str, str, int | None]) -> Status:
    """What `ReplicaHost.status` told, as a value."""
    phase, detail, exit_code = told
    return Status(Phase(phase), detail, exit_code)
