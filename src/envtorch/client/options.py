"""How a client reaches its server."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, Self, TypedDict, get_args

from envtorch.errors import ConfigurationError

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
    alert_s: float


class Owner(Protocol):
    """Whatever started the server for this client, and stops it when the client closes."""

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
    """What to offer the server: our wire in JSON or MessagePack, or OpenEnv's alone."""
    wait_s: float = 0.0
    """How long to wait, in turn, for a slot on a full server."""
    reconnect_s: float = 60.0
    """How long to try to get a dropped session back."""
    heartbeat_s: float = 20.0
    """How long a server may be silent during a call before the socket is suspected."""
    alert_s: float = 0.0005
    """How long a blocking client looks for an answer before it goes to sleep over it; 0 to sleep at once."""

    @property
    def subprotocols(self) -> list[str]:
        return {"json": ["envtorch.v1"], "msgpack": ["envtorch.v1+msgpack"], "openenv": []}[self.wire]

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
