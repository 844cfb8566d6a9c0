"""How a client reaches its server."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, Self, TypedDict, get_args

from envtorch.errors import ConfigurationError
from envtorch.protocol.reconnect import Timings

__all__ = ["ClientOptions", "GivenOptions", "Owner", "Wire"]

Wire = Literal["json", "msgpack", "openenv"]


class GivenOptions(TypedDict, total=False):
    """The keywords of a client's constructor; `ClientOptions` says what they mean."""

    token: str | None
    connect_timeout_s: float
    message_timeout_s: float
    max_message_size_mb: float
    headers: Mapping[str, str] | None
    wire: Wire
    wait_s: float
    reconnect_s: float
    heartbeat_s: float


class Owner(Protocol):
    """What started the server for this client, and stops it when the client closes."""

    def stop_container(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Where the server is, and how long to wait for it. Times are seconds."""

    base_url: str
    token: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 10.0
    message_timeout_s: float = 60.0
    max_message_bytes: int = 100 * 1024 * 1024
    headers: Mapping[str, str] = field(default_factory=dict)
    wire: Wire = "json"
    """What to offer the server: the extended wire in JSON or MessagePack, or OpenEnv's only."""
    wait_s: float = 0.0
    """How long to wait in a queue for a slot on a full server."""
    reconnect_s: float = 60.0
    """How long to try to reach the server after a connection is lost. One outage has one such budget, however
    many calls are made meanwhile; a server that refuses connections is given up after a second."""
    heartbeat_s: float = 20.0
    """How long a server may be silent during a call before it is pinged."""

    @property
    def subprotocols(self) -> list[str]:
        return {"json": ["envtorch.v1"], "msgpack": ["envtorch.v1+msgpack"], "openenv": []}[self.wire]

    @property
    def timings(self) -> Timings:
        """The times among the options."""
        return Timings(
            connect_timeout_s=self.connect_timeout_s,
            message_timeout_s=self.message_timeout_s,
            wait_s=self.wait_s,
            reconnect_s=self.reconnect_s,
            heartbeat_s=self.heartbeat_s,
        )

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers of the handshake, the server's token among them."""
        bearer = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return {**bearer, **self.headers}

    @classmethod
    def of(cls, base_url: str, **given: Any) -> Self:
        """Options as the clients take them. Raises `ConfigurationError` for one that is not there."""
        size = given.pop("max_message_size_mb", None)
        if size is not None:
            given["max_message_bytes"] = int(size * 1024 * 1024)
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ConfigurationError(f"a client has no option {', '.join(map(repr, unknown))}")
        if given.get("wire", "json") not in get_args(Wire):
            raise ConfigurationError(f"wire is one of {', '.join(get_args(Wire))}, not {given['wire']!r}")
        return cls(base_url, **{name: value for name, value in given.items() if value is not None})
