"""OpenEnv's exceptions, each also one of ours."""

from envtorch.errors import CapacityReached, ConfigurationError, EnvTorchError, FactoryFailed, SessionLost

__all__ = [
    "ConcurrencyConfigurationError",
    "EnvironmentFactoryError",
    "OpenEnvError",
    "SessionCapacityError",
    "SessionCreationError",
    "SessionNotFoundError",
]


class OpenEnvError(EnvTorchError):
    """The root of OpenEnv's errors."""


class ConcurrencyConfigurationError(OpenEnvError, ConfigurationError):
    """More sessions asked for than the environment says it can have side by side."""

    def __init__(self, environment_name: str, max_concurrent_envs: int, message: str | None = None) -> None:
        super().__init__(
            message
            or f"{environment_name} does not set SUPPORTS_CONCURRENT_SESSIONS, so it cannot be served "
            f"with max_concurrent_envs={max_concurrent_envs}"
        )
        self.environment_name = environment_name
        self.max_concurrent_envs = max_concurrent_envs


class SessionCapacityError(OpenEnvError, CapacityReached):
    """Every session the server may hold is taken."""

    def __init__(self, active_sessions: int, max_sessions: int, message: str | None = None) -> None:
        text = CapacityReached.of(active_sessions, max_sessions).message
        super().__init__(message or text, active_sessions=active_sessions, max_sessions=max_sessions)
        self.active_sessions = active_sessions
        self.max_sessions = max_sessions


class SessionNotFoundError(OpenEnvError, SessionLost):
    """There is no such session."""

    def __init__(self, session_id: str, message: str | None = None) -> None:
        super().__init__(message or f"Session '{session_id}' not found")
        self.session_id = session_id


class SessionCreationError(OpenEnvError):
    """A session could not be made."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message or f"Failed to create session: {reason}")
        self.reason = reason


class EnvironmentFactoryError(OpenEnvError, FactoryFailed):
    """The factory raised instead of giving an environment."""

    def __init__(self, factory_name: str, message: str | None = None) -> None:
        text = f"Environment factory '{factory_name}' failed to create instance."
        super().__init__(message or text, factory_name=factory_name)
        self.factory_name = factory_name
