"""How a client reaches its server."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, Self, TypedDict, get_args

from envtorch.client.addresses import Elsewhere
from envtorch.errors import ConfigurationError
from envtorch.protocol.arguments import LONGEST_S, is_duration, shown
from envtorch.protocol.reconnect import Timings

__all__ = [
    "ClientOptions",
    "GivenOptions",
    "Owner",
    "Recovery",
    "Wire",
    "require_headers",
    "require_owner",
]

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
"""What every part of HTTP takes (RFC 9110, 5.1 and 5.5): ASCII without control characters."""

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

    base_url: str = field(repr=False)
    """May have a user name and a password in it."""
    token: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 10.0
    message_timeout_s: float = 60.0
    max_message_bytes: int = 100 * 1024 * 1024
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
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
    elsewhere: Sequence[str] | Elsewhere = field(default=(), repr=False)
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
        _require_texts(base_url, given)
        size = given.pop("max_message_size_mb", None)
        if size is not None:
            if not is_duration(size) or not size > 0:
                raise ConfigurationError(f"max_message_size_mb is a number above 0, not {shown(size)}")
            given["max_message_bytes"] = int(size * 1024 * 1024)
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ConfigurationError(f"a client has no option {', '.join(map(repr, unknown))}")
        if given.get("wire", "json") not in get_args(Wire):
            raise ConfigurationError(f"wire is one of {', '.join(get_args(Wire))}, not {given['wire']!r}")
        if given.get("recover") not in (None, *get_args(Recovery)):
            raise ConfigurationError(f"recover is 'replay' or None, not {given['recover']!r}")
        if given.get("elsewhere") is not None:
            _require_elsewhere(given["elsewhere"])
        if given.get("elsewhere") and given.get("recover") is None:
            raise ConfigurationError("`elsewhere` is where sessions are recovered: set recover='replay' too")
        for name in given.keys() & _LEAST_S.keys():
            if given[name] is not None:
                given[name] = _seconds(name, given[name])
        return cls(base_url, **{name: value for name, value in given.items() if value is not None})


_LEAST_S = {
    "connect_timeout_s": 0.001,
    "message_timeout_s": 0.001,
    "wait_s": 0.0,
    "reconnect_s": 0.0,
    "heartbeat_s": 0.001,
    "recover_s": 0.0,
}
"""The options that are durations, and the shortest that each may be."""


def _seconds(name: str, value: Any) -> float:
    """A duration among the options. Raises `ConfigurationError`."""
    if not is_duration(value) or value < _LEAST_S[name]:
        raise ConfigurationError(
            f"{name} is a number of seconds from {_LEAST_S[name]:g} to {LONGEST_S:,.0f}, not {shown(value)}"
        )
    return float(value)


def _require_texts(base_url: Any, given: Mapping[str, Any]) -> None:
    """Refuse an address, a token or headers that are no text."""
    if not isinstance(base_url, str):
        raise ConfigurationError(f"base_url is the server's address, a text, not {shown(base_url)}")
    if not isinstance(given.get("token"), str | None):
        raise ConfigurationError(f"token is a text, not {type(given['token']).__name__}")
    require_headers(given.get("headers"))


def require_headers(headers: Any) -> None:
    """Refuse headers that are no texts, or that no request can carry."""
    if headers is None:
        return
    if not isinstance(headers, Mapping) or not all(
        isinstance(text, str) for header in headers.items() for text in header
    ):
        raise ConfigurationError("headers are a mapping from names to values, all of them texts")
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name):
            raise ConfigurationError(f"headers: {shown(name)} is no name of a header")
        if not HEADER_VALUE.fullmatch(value):  # which may be a secret, and is not shown
            raise ConfigurationError(
                f"headers: the value of {name!r} has characters other than printable ASCII"
            )


def require_owner(provider: Any) -> None:
    """Refuse a provider that could not stop the server when the client is closed."""
    if provider is not None and not callable(getattr(provider, "stop_container", None)):
        raise ConfigurationError(
            f"provider is what stops the server, with stop_container(), not {shown(provider)}"
        )


def _require_elsewhere(elsewhere: Any) -> None:
    if isinstance(elsewhere, Elsewhere):
        return
    if isinstance(elsewhere, str | bytes):
        raise ConfigurationError("elsewhere is a list of addresses, also when it is only one")
    if not isinstance(elsewhere, Sequence) or not all(isinstance(address, str) for address in elsewhere):
        raise ConfigurationError(f"elsewhere is a list of addresses, not {shown(elsewhere)}")
