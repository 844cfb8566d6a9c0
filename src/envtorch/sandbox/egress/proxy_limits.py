"""The limits of one session's network."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What one session may use."""

    network_bytes: int
    """Both ways together, for its whole life."""
    connections: int = 32
    """At once; more wait in the kernel's queue."""
    head_s: float = 10.0
    connect_s: float = 15.0
    idle_s: float = 60.0
    life_s: float = 900.0
    """Of one connection."""
