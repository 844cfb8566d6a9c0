"""Clients that come with a server started for them."""

from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, Generic, TypeVar

from envtorch.compat.utils import hf_space_subdomain

__all__ = ["Bootstrap", "start_image", "start_provider", "start_space"]

ClientT = TypeVar("ClientT")


class Bootstrap(Coroutine[Any, Any, ClientT], Generic[ClientT]):
    """A client on its way: await it, hand it to `asyncio.run`, or call `.sync()`. It starts one server."""

    def __init__(self, start: Callable[[], ClientT]) -> None:
        self._start: Callable[[], ClientT] | None = start
        self._running: Coroutine[Any, Any, ClientT] | None = None

    def _once(self) -> ClientT:
        start, self._start = self._start, None
        if start is None:
            raise RuntimeError("this client was already started; call the constructor for another")
        return start()

    async def _connected(self) -> ClientT:
        client: Any = self._once()
        await client.connect()
        connected: ClientT = client
        return connected

    def _coroutine(self) -> Coroutine[Any, Any, ClientT]:
        if self._running is None:
            self._running = self._connected()
        return self._running

    def __await__(self) -> Generator[Any, Any, ClientT]:
        return self._coroutine().__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine().throw(*error)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()

    def sync(self) -> Any:
        """The blocking client, connected."""
        client: Any = self._once()
        blocking = client.sync()
        blocking.connect()
        return blocking


def start_image(cls: type[ClientT], image: str, provider: Any, options: Mapping[str, Any]) -> ClientT:
    """A client of a container of this image."""
    if provider is None:
        from envtorch.providers import LocalDockerProvider  # it needs an extra

        provider = LocalDockerProvider()
    base_url = provider.start_container(image, **options)
    provider.wait_for_ready(base_url)
    return cls(base_url=base_url, provider=provider)  # type: ignore[call-arg]


def start_space(
    cls: type[ClientT], repo_id: str, use_docker: bool, provider: Any, options: Mapping[str, Any]
) -> ClientT:
    """A client of a Space's environment: its image in a container, or its code under `uv`."""
    if use_docker:
        tag = options.get("tag", "latest")
        rest = {key: value for key, value in options.items() if key != "tag"}
        return start_image(cls, f"registry.hf.space/{hf_space_subdomain(repo_id)}:{tag}", provider, rest)
    if provider is None:
        from envtorch.providers import UVProvider

        provider = UVProvider(f"git+https://huggingface.co/spaces/{repo_id}", **options)
    base_url = start_provider(provider)
    return cls(base_url=base_url, provider=provider)  # type: ignore[call-arg]


def start_provider(provider: Any) -> str:
    """The address of the server that a provider starts."""
    start = getattr(provider, "start", None) or provider.start_container
    base_url = str(start())
    provider.wait_for_ready()
    return base_url
