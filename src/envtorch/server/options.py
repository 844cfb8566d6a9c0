"""How a server is to be: one frozen value, from which `create_app` and `serve` make it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.server.sessions.environment_factory import Factory
from envtorch.settings import ServerMode
from envtorch.types import ConcurrencyConfig

__all__ = ["DEFAULT_SESSIONS", "ServerOptions"]

DEFAULT_SESSIONS = 64
"""How many sessions a server holds where neither its options nor the environment's class say otherwise."""

OPENENV_SPELLINGS = {"max_concurrent_envs": "sessions", "env_name": "name"}
"""OpenEnv's names for options that have another one here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server. What is left out comes from the environment's class or from `Settings`."""

    sessions: int | None = None
    """How many sessions there may be at once. Left out: 64 for a class of environments, 1 if that class says
    `SUPPORTS_CONCURRENT_SESSIONS = False`, and 1 for a function or an instance."""

    isolation: str | None = None
    """`"process"`: each session's environment lives in a process of its own."""

    record: Path | str | None = None
    """The directory to which every episode is written."""

    record_required: bool = False
    """Whether calls are refused, with `RecordingFailed`, while the recording cannot be written."""

    web: bool | None = None
    """Whether there is a page at `/web`; `ENABLE_WEB_INTERFACE` otherwise."""

    mode: ServerMode | str | None = None
    """`simulation` or `production`; `ENVTORCH_MODE` otherwise."""

    name: str | None = None
    """What the environment is called; its class's name otherwise."""

    max_message_bytes: int | None = None
    """The largest HTTP body or WebSocket message; `ENVTORCH_MAX_MESSAGE_BYTES`, or 16 MiB, otherwise."""

    session_timeout: float | None = None
    """Seconds without a call after which a session is closed that no socket holds; 900 otherwise."""

    concurrency_config: ConcurrencyConfig | None = None
    """Room and times in OpenEnv's form; in place of `sessions` and `session_timeout`."""

    state_cls: type | None = None
    reset_observation_cls: type | None = None

    gradio_builder: Callable[..., Any] | None = None
    """Makes a page of your own; see `create_app`."""
    custom_tab_name: str = "Custom"
    custom_tab_primary: bool = False
    show_default_tab: bool = True
    title_override: str | None = None

    @classmethod
    def of(cls, options: "ServerOptions | None", given: Mapping[str, Any]) -> "ServerOptions":
        """`options` with what was given beside them. Raises `ConfigurationError` for what is no option."""
        named = {OPENENV_SPELLINGS.get(name, name): value for name, value in given.items()}
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(named) - known)
        if unknown:
            raise ConfigurationError(
                f"no such option: {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        if len(named) < len(given):
            raise ConfigurationError("one option was given twice, in two spellings")
        return replace(options or cls(), **named)

    def concurrency(self, factory: Factory) -> ConcurrencyConfig:
        """How many sessions there may be, and how long they are kept, for these environments."""
        if self.concurrency_config is not None:
            if self.sessions is not None or self.session_timeout is not None:
                raise ConfigurationError("pass sessions and session_timeout, or concurrency_config, not both")
            return self.concurrency_config
        if self.sessions is not None and self.sessions < 1:
            raise ConfigurationError(f"a server has room for one session or more, not {self.sessions}")
        room = self.sessions or (DEFAULT_SESSIONS if factory.allows_many else 1)
        return ConcurrencyConfig(max_concurrent_envs=room, session_timeout=self.session_timeout)
