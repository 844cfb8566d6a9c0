"""Starting a server for a client: by which provider, with which options, and nothing left if it fails.

Providers are loaded by name when they are needed: a client that connects to a server that is already
there pays for none of them.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from envtorch.client.client_options import GivenOptions, Owner
from envtorch.env import load_object

__all__ = [
    "ContainerStarter",
    "Launch",
    "Launched",
    "RuntimeStarter",
    "Starter",
    "launch_async",
    "plan",
    "plan_hub",
]

CLIENT_OPTIONS = frozenset(GivenOptions.__annotations__) | {"request_timeout_s", "default_headers"}
"""Options that are the client's own; every other one is the provider's to know or refuse."""

READY_TIMEOUT_S = 60.0


@runtime_checkable
class ContainerStarter(Protocol):
    """What a client needs of a `ContainerProvider`: any object with these three methods will do."""

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str: ...
    def wait_for_ready(self, base_url: str, timeout_s: float = ...) -> None: ...
    def stop_container(self) -> None: ...


@runtime_checkable
class RuntimeStarter(Protocol):
    """What a client needs of a `RuntimeProvider`."""

    def start(
        self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **options: Any
    ) -> str: ...
    def wait_for_ready(self, timeout_s: float = ...) -> None: ...
    def stop(self) -> None: ...


Starter = ContainerStarter | RuntimeStarter


@dataclass(frozen=True, slots=True)
class Launch:
    """A server that is about to be started for one client."""

    image: str
    provider: Starter
    is_ours: bool
    """The provider was made here, so nobody else will close it."""

    options: Mapping[str, Any]
    client_options: Mapping[str, Any]
    ready_timeout_s: float

    def run(self) -> "Launched":
        """Start the server and wait until it is healthy; if that fails, nothing is left of it."""
        try:
            if isinstance(self.provider, ContainerStarter):
                url = self.provider.start_container(self.image, **self.options)
                self.provider.wait_for_ready(url, timeout_s=self.ready_timeout_s)
            else:
                url = self.provider.start(**self.options)
                self.provider.wait_for_ready(timeout_s=self.ready_timeout_s)
        except BaseException:
            self.stop_container()
            raise
        return Launched(url, self, self.client_options)

    def stop_container(self) -> None:
        if isinstance(self.provider, ContainerStarter):
            self.provider.stop_container()
        else:
            self.provider.stop()
        close: Callable[[], None] | None = getattr(self.provider, "close", None)
        if self.is_ours and close is not None:
            close()


@dataclass(frozen=True, slots=True)
class Launched:
    """A healthy server, and who stops it."""

    base_url: str
    owner: Owner
    client_options: Mapping[str, Any]


def plan(
    image: str,
    provider: "Starter | str | None",
    options: Mapping[str, Any],
    *,
    default: Callable[[], Starter] | None = None,
) -> Launch:
    """Sort `options` by whose they are, and find the provider: an object, or the name of one."""
    rest = dict(options)
    ready_timeout_s = float(rest.pop("ready_timeout_s", READY_TIMEOUT_S))
    client_options = {name: rest.pop(name) for name in CLIENT_OPTIONS & rest.keys()}
    is_ours = provider is None or isinstance(provider, str)
    if provider is None:
        provider = default() if default is not None else "docker"
    if isinstance(provider, str):
        provider = load_object("envtorch.providers:make_provider")(provider)
    assert not isinstance(provider, str)
    return Launch(image, provider, is_ours, rest, client_options, ready_timeout_s)


def plan_hub(
    repo_id: str, use_docker: bool, provider: "Starter | str | None", options: Mapping[str, Any]
) -> Launch:
    """A server of a Hugging Face Space: its image in a container, or its sources with uv."""
    rest = dict(options)
    hub = load_object("envtorch.providers.hub:Space")
    space = hub(repo_id, **({"revision": rest.pop("revision")} if "revision" in rest else {}))
    if use_docker:
        return plan(space.image, provider, rest)
    return plan(
        space.repository,
        provider,
        rest,
        default=lambda: load_object("envtorch.providers.uv:UVProvider")(space.repository),
    )


async def launch_async(make_plan: Callable[[], Launch]) -> Launched:
    """`make_plan().run()` off the loop; if the caller is cancelled, the server is stopped first."""
    planned = await asyncio.to_thread(make_plan)
    running = asyncio.ensure_future(asyncio.to_thread(planned.run))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # The thread cannot be interrupted, but stopping what it waits for ends its wait.
        while not running.done():
            await _uncancelled(asyncio.to_thread(planned.stop_container))
            await asyncio.wait([running], timeout=0.1)
        if running.exception() is None:
            await _uncancelled(asyncio.to_thread(planned.stop_container))
        raise


async def _uncancelled(stop: Any) -> None:
    await asyncio.wait([asyncio.ensure_future(stop)])
