"""How a client reaches its server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["ClientOptions", "Owner"]


class Owner(Protocol):
    """Whatever started the server for this client, and stops it when the client closes."""

    def stop_container(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Where the server is, and how long to wait for it. Times are seconds."""

    base_url: str
    connect_timeout_s: float = 10.0
    message_timeout_s: float = 60.0
    max_message_bytes: int = 100 * 1024 * 1024
    headers: Mapping[str, str] = field(default_factory=dict)
