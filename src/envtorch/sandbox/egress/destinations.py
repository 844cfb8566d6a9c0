"""Which hosts a session may reach: an allow-list, and which addresses a name may stand for."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

USUAL_PORTS = frozenset({80, 443})
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}")
_LONGEST_NAME = 253
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ALSO_PRIVATE: tuple[Network, ...] = (
    ipaddress.IPv4Network("168.63.129.16/32"),  # a cloud's metadata, under a public address
    ipaddress.IPv4Network("192.88.99.0/24"),
    ipaddress.IPv6Network("64:ff9b:1::/48"),
)


def normal_host(text: str) -> str | Address:
    """A host name in lower case, or an address. Raises `ValueError` for what is neither.

    Spellings of addresses that only a resolver understands, like `127.1` and `0x7f000001`, are neither.
    """
    name = text.lower()
    if name.startswith("[") and name.endswith("]"):
        return ipaddress.IPv6Address(name[1:-1])
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        pass
    name = name.removesuffix(".")
    last = name.rpartition(".")[2]
    if len(name) > _LONGEST_NAME or not _HOST.fullmatch(name) or re.fullmatch(r"\d+|0x[0-9a-f]*", last):
        raise ValueError(f"{text[:80]!r} is neither a host name nor an address")
    return name


def is_public(address: Address) -> bool:
    """Whether anybody on the internet could have that address: no loopback, no private or local network, no
    metadata service, and none of these inside of another address."""
    inner = _inside(address)
    if inner is not None:
        return is_public(inner)
    if any(address in network for network in _ALSO_PRIVATE):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _inside(address: Address) -> Address | None:
    """The address that a translated or tunnelled one stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


@dataclass(frozen=True, slots=True)
class Allowed:
    """One entry: a name, all names below one, or addresses; and the ports of it."""

    ports: frozenset[int]
    name: str = ""
    below: bool = False
    network: Network | None = None

    def permits_name(self, name: str, port: int) -> bool:
        if not self.name or port not in self.ports:
            return False
        return name.endswith(f".{self.name}") if self.below else name == self.name

    def permits_address(self, address: Address, port: int) -> bool:
        return self.network is not None and port in self.ports and address in self.network


@dataclass(frozen=True, slots=True)
class AllowList:
    """What a session may reach. Nothing else is."""

    entries: tuple[Allowed, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "AllowList":
        """Entries as a person writes them: `name`, `*.name`, an address or a network, each with `:port` if it
        is not 80 and 443. Raises `ValueError` that names the entry."""
        return cls(tuple(map(_entry, texts)))

    def permits(self, host: str | Address, port: int) -> bool:
        """Whether a session may ask for that host."""
        if isinstance(host, str):
            return any(entry.permits_name(host, port) for entry in self.entries)
        return self._lists(host, port)

    def permits_resolved(self, address: Address, port: int) -> bool:
        """Whether a name may stand for that address: a public one, or one that is on the list itself."""
        return is_public(address) or self._lists(address, port)

    def _lists(self, address: Address, port: int) -> bool:
        return any(entry.permits_address(address, port) for entry in self.entries)


def _entry(text: str) -> Allowed:
    host, port = _split(text)
    ports = USUAL_PORTS if port is None else frozenset({port})
    try:
        return Allowed(ports, network=ipaddress.ip_network(host.strip("[]"), strict=False))
    except ValueError:
        pass
    below = host.startswith("*.")
    try:
        name = normal_host(host.removeprefix("*."))
    except ValueError:
        raise ValueError(
            f"{text!r} is no host: write a name, *.name, an address or a network, with :port if need be"
        ) from None
    if not isinstance(name, str) or (below and "." not in name):
        raise ValueError(f"{text!r} would allow too much: name the hosts below it")
    return Allowed(ports, name=name, below=below)


def _split(text: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # an IPv6 address without a port
        return text, None
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} has no port between 1 and 65535 behind its colon")
    return host, int(port)
