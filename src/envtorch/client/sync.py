"""The blocking client: a socket, and nothing behind your back."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from envtorch.client.aio import AsyncTwin
from envtorch.client.hooks import Hooks
from envtorch.client.links import Link, LocalLink, SocketLink, make_environment
from envtorch.client.options import ClientOptions, Owner
from envtorch.env import EnvironmentSource
from envtorch.protocol.client import Asking, ask_reset, ask_state, ask_step
from envtorch.protocol.flow import drive
from envtorch.types import ActT, ObsT, StateT, StepResult

__all__ = ["EnvClient", "GenericEnvClient"]

T = TypeVar("T")


class EnvClient(Hooks[ActT, ObsT, StateT], Generic[ActT, ObsT, StateT]):
    """One session on an environment server, blocking.

        class MyEnv(EnvClient[MyAction, MyObservation, MyState]): ...

        with MyEnv("http://127.0.0.1:8000") as env:
            result = env.reset(seed=7)
            result = env.step(MyAction(text="hello"))

    It connects on first use. `MyEnv.aio(...)` is the async twin, with the same method names;
    `MyEnv.local(...)` runs the environment in this process, with no server. An object is for one
    thread at a time; open as many as you like.
    """

    aio = AsyncTwin()
    """`MyEnv.aio(url)`, `MyEnv.aio.local(...)`: the same client, awaited."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 60.0,
        max_message_size_mb: float = 100.0,
        headers: Mapping[str, str] | None = None,
        provider: Owner | None = None,
    ) -> None:
        self._options = ClientOptions(
            base_url=base_url,
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            max_message_bytes=int(max_message_size_mb * 1024 * 1024),
            headers=dict(headers or {}),
        )
        self._provider = provider
        self._link: Link | None = None

    @classmethod
    def local(cls, environment: EnvironmentSource | None = None) -> Self:
        """A client of an environment in this process: a class, a factory, an instance, or a path.

        Calls go through the same validation and encoding as over a socket. A timeout cannot be kept
        here: the call runs on your own thread.
        """
        client = cls("local://")
        client._link = LocalLink(make_environment(environment, cls.environment), cls._codec_of_class())
        return client

    @property
    def base_url(self) -> str:
        return self._options.base_url

    def connect(self) -> Self:
        """Open the session now, rather than on first use."""
        if self._link is None:
            self._link = SocketLink(self._options)
        return self

    def reset(self, *, timeout_s: float | None = None, **options: Any) -> StepResult[ObsT]:
        """Begin an episode: `seed`, `episode_id`, and whatever the environment's `reset` takes."""
        return self._run(ask_reset(self, options), timeout_s)

    def step(self, action: ActT, *, timeout_s: float | None = None) -> StepResult[ObsT]:
        """Take one action."""
        return self._run(ask_step(self, action), timeout_s)

    def state(self, *, timeout_s: float | None = None) -> StateT:
        """Where the episode stands."""
        return self._run(ask_state(self), timeout_s)

    def close(self) -> None:
        """End the session, and stop the server if it was started for this client."""
        link, self._link = self._link, None
        try:
            if link is not None:
                link.close()
        finally:
            if self._provider is not None:
                self._provider.stop_container()

    def _run(self, flow: Asking[T], timeout_s: float | None) -> T:
        link = self.connect()._link
        assert link is not None
        timeout = self._options.message_timeout_s if timeout_s is None else timeout_s
        return drive(flow, lambda ask: link.exchange(ask, timeout_s=timeout))

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._options.base_url}>"


class GenericEnvClient(EnvClient[dict[str, Any], dict[str, Any], dict[str, Any]]):
    """A client for any environment, without its classes: dictionaries in, dictionaries out."""
