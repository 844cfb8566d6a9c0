"""How a client reaches its server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, Self, TypedDict, get_args

from envtorch.client.addresses import Elsewhere
from envtorch.errors import ConfigurationError
from envtorch.protocol.reconnect import Timings

__all__ = ["ClientOptions", "GivenOptions", "Owner", "Recovery", "Wire"]

Wire = Literal["json", "msgpack", "openenv"]
Recovery = Literal["replay"]


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
    recover: Recovery | None
    recover_s: float
    elsewhere: Sequence[str] | Elsewhere


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
    recover: Recovery | None = None
    """What happens when the server is lost. None: the session is lost with it. "replay": its episode is
    played again on another server, every observation is compared with the one that was seen, and the call
    goes on there."""
    recover_s: float = 120.0
    """How long one recovery may take: finding another server, and playing the episode again there."""
    elsewhere: Sequence[str] | Elsewhere = ()
    """With `recover`: the addresses of other servers with the same environment. Without any, the session is
    recovered at its own address, when a server is there again."""

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
            **({"refused_s": 0.0} if self.elsewhere else {}),
        )

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers of the handshake, the server's token among them."""
        token = (self.token or "").strip()  # a file with a token ends with a line break
        if not token.isprintable():
            raise ConfigurationError("the token has characters that no header can carry")
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
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
        if given.get("recover") not in (None, *get_args(Recovery)):
            raise ConfigurationError(f"recover is 'replay' or None, not {given['recover']!r}")
        if isinstance(given.get("elsewhere"), str):
            raise ConfigurationError("elsewhere is a list of addresses, also when it is only one")
        if given.get("elsewhere") and given.get("recover") is None:
            raise ConfigurationError("`elsewhere` is where sessions are recovered: set recover='replay' too")
        return cls(base_url, **{name: value for name, value in given.items() if value is not None})
