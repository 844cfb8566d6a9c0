"""The blocking client: one socket, no thread and no event loop."""

import copy
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from envtorch.client.async_twin import AsyncTwin
from envtorch.client.blocking.links import Link, LocalLink, open_link
from envtorch.client.client_options import ClientOptions, GivenOptions, Owner, require_owner
from envtorch.client.guard import ProcessGuard, ThreadGuard
from envtorch.client.launch import Launch, Starter, plan, plan_hub
from envtorch.client.local_environment import host_maker
from envtorch.client.translation import Translation, ask_reset, ask_state, ask_step
from envtorch.env import EnvironmentSource
from envtorch.errors import ClientClosed
from envtorch.protocol.arguments import timeout_of
from envtorch.protocol.flow import drive
from envtorch.protocol.formats import Format
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.requests import Asking, copies_of
from envtorch.protocol.tool_requests import ask_tools
from envtorch.shown_urls import shown_url
from envtorch.types import ActT, ObsT, StateT, StepResult, Tool

if TYPE_CHECKING:
    from envtorch.client.blocking.vector import VectorEnv
    from envtorch.client.vector_flows import Autoreset

__all__ = ["EnvClient", "GenericEnvClient"]

T = TypeVar("T")


class EnvClient(Translation[ActT, ObsT, StateT], Generic[ActT, ObsT, StateT]):
    """One session on an environment server, blocking.

        class MyEnv(EnvClient[MyAction, MyObservation, MyState]): ...

        with MyEnv("http://127.0.0.1:8000") as env:
            result = env.reset(seed=7)
            result = env.step(MyAction(text="hello"))

    It connects on first use. `MyEnv.aio(...)` is the async twin, with the same method names;
    `MyEnv.local(...)` runs the environment in this process, with no server.

    Use one client per thread: a second thread that calls while the first waits gets `ClientBusy`. A client
    does not survive `os.fork`: the child process gets `WrongProcess`, and leaves the parent's session alone.

    A call that is interrupted (Ctrl-C) is cancelled on the server, and the next one goes on. Over OpenEnv's
    wire, and where the environment could not be stopped, that is `SessionLost`, and `reset()` goes on.

    A session that is lost stays lost until `reset()`, which opens another. After `close()` every call but
    `reset()` raises `ClientClosed`. A client that is dropped, or whose script ends, gives its slot back.
    """

    aio = AsyncTwin()
    """`MyEnv.aio(url)`, `MyEnv.aio.local(...)`: the same client, awaited."""

    def __init__(
        self, base_url: str, *, provider: Owner | None = None, **options: Unpack[GivenOptions]
    ) -> None:
        self._options = ClientOptions.of(base_url, **options)
        require_owner(provider)
        self._provider = provider
        self._link: Link | None = None
        self._opening = ThreadGuard("client")
        """One thread opens the session; its link has a guard of its own."""
        self._is_closed = False
        self._home = ProcessGuard("client")
        self._make_host: Callable[[], EnvironmentHost] | None = None
        """Makes the environment of a client without a server."""

    @classmethod
    def local(cls, environment: EnvironmentSource | None = None) -> Self:
        """A client of an environment in this process: a class, a factory, an instance, or a path.

        Calls go through the same validation and encoding as over a socket. A plain environment's calls run on
        your own thread, and a timeout cannot be kept; what an async environment awaits runs on an event loop
        of its own, so this works in a notebook too.
        """
        client = cls("local://")
        client._make_host = host_maker(environment, cls.environment, cls._codec_of_class())
        client._connected()
        return client

    @classmethod
    def vector(
        cls,
        base_url: str,
        count: int,
        *,
        autoreset: "Autoreset" = "disabled",
        **options: Unpack[GivenOptions],
    ) -> "VectorEnv[ActT, ObsT, StateT]":
        """That many sessions, stepped together over one socket; see `VectorEnv`."""
        from envtorch.client.blocking.vector import VectorEnv

        return VectorEnv(cls(base_url, **options), base_url, count, autoreset=autoreset, **options)

    @classmethod
    def from_docker_image(cls, image: str, provider: Starter | str | None = None, **options: Any) -> Self:
        """Start a server from `image` and connect to it; `close` stops it again.

        `provider` is a provider, or the name of one, and Docker by default. `options` are those of the
        provider's `start_container` (`port`, `env_vars`, limits, ...), of this client, and
        `ready_timeout_s`.
        """
        return cls._launched(plan(image, provider, options))

    @classmethod
    def from_hub(
        cls, repo_id: str, *, use_docker: bool = True, provider: Starter | str | None = None, **options: Any
    ) -> Self:
        """Start a Hugging Face Space on this machine: its image in a container, or its sources with uv."""
        return cls._launched(plan_hub(repo_id, use_docker, provider, options))

    @classmethod
    def _launched(cls, launch: Launch) -> Self:
        server = launch.run()
        return cls(server.base_url, provider=server.owner, **server.client_options)

    @property
    def base_url(self) -> str:
        return self._options.base_url

    def connect(self) -> Self:
        """Open the session now, rather than on first use."""
        self._connected(reopen=True)
        return self

    def _connected(self, *, reopen: bool = False) -> Link:
        """The link to the session. After `close` there is none, unless it may `reopen` one."""
        if self._is_closed and not reopen:
            raise ClientClosed("the client was closed; reset() opens a new session")
        link = self._link
        if link is None:
            with self._opening:
                link = self._link = self._link or self._open()
        self._is_closed = False
        return link

    def _open(self) -> Link:
        return open_link(self._options) if self._make_host is None else LocalLink(self._make_host())

    def reset(self, *, timeout_s: float | None = None, **options: Any) -> StepResult[ObsT]:
        """Begin an episode: `seed`, `episode_id`, and whatever the environment's `reset` takes.

        When the session was lost or closed, this opens a new one.
        """
        return self._run(partial(ask_reset, self, options), timeout_s, reopen=True)

    def step(self, action: ActT, *, timeout_s: float | None = None) -> StepResult[ObsT]:
        """Take one action. Past `timeout_s` an EnvTorch server answers `TimedOut`, and says whether the
        session can go on; one that says nothing is waited for 5 s longer. Any other server is not."""
        return self._run(lambda format: ask_step(self, action, format), timeout_s)

    def state(self, *, timeout_s: float | None = None) -> StateT:
        """Where the episode stands."""
        return self._run(lambda _: ask_state(self), timeout_s)

    def list_tools(self, *, timeout_s: float | None = None) -> list[Tool]:
        """Which tools the environment has. Raises `Unsupported` if it has none."""
        return self._run(ask_tools, timeout_s)

    def fork(self, n: int = 1, *, timeout_s: float | None = None) -> list[Self]:
        """Copies of this session as it is now, each a client on a session of its own.

        The environment is copied between two calls: by its own `fork()`, else by `copy.deepcopy`. Raises
        `Unsupported` when that cannot be done, and `CapacityReached` when there is no room for all.
        Close each copy; it outlives this client, but not a server that was started for this client.
        """
        count, limit_s = copies_of(n), timeout_of(timeout_s)
        return [self._on(link) for link in self._connected().fork(count, timeout_s=limit_s)]

    def _on(self, link: Link) -> Self:
        """This client, on another session."""
        client = copy.copy(self)
        client._link, client._provider, client._opening = link, None, ThreadGuard("client")
        return client

    def close(self) -> None:
        """End the session, and stop the server if it was started for this client.

        In a child process that inherited the client, the session and the server are left alone.
        """
        self._is_closed = True
        try:
            with self._opening:
                if self._link is not None:
                    self._link.close()
            self._link = None  # now: a close that was interrupted can be repeated
        except Exception:
            self._link = None
            raise
        finally:
            if self._provider is not None and self._home.is_at_home:
                self._provider.stop_container()

    def _run(
        self, flow: Callable[[Format], Asking[T]], timeout_s: float | None, *, reopen: bool = False
    ) -> T:
        limit_s = timeout_of(timeout_s)
        link = self._connected(reopen=reopen)
        return drive(flow(link.format), lambda ask: link.exchange(ask, timeout_s=limit_s))

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
        return f"<{type(self).__name__} {shown_url(self._options.base_url)}>"


class GenericEnvClient(EnvClient[dict[str, Any], dict[str, Any], dict[str, Any]]):
    """A client for any environment, without its classes: dictionaries in, dictionaries out."""
