"""`envtorch serve TARGET`, as a child of this process."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from envtorch.providers.child import listen, start_child
from envtorch.providers.provider_base import RuntimeProvider
from envtorch.settings import variables

__all__ = ["TargetServer"]


class TargetServer(RuntimeProvider):
    """A server of what `target` names. It sees all of this process's environment variables, as by hand."""

    def __init__(self, target: str, options: Sequence[str] = ()) -> None:
        super().__init__()
        self._command = [sys.executable, "-m", "envtorch.cli", "serve", target, "--fd", "{fd}", *options]

    def start(
        self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **options: Any
    ) -> str:
        self._refuse_second()
        environment = {**variables(), "PYTHONUNBUFFERED": "1", **(env_vars or {})}
        return self._adopt(
            start_child(self._command, listener=listen("127.0.0.1", port), environment=environment)
        )
