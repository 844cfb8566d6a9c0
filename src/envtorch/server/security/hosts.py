"""Which `Host` and `Origin` headers a server accepts.

A web page can make its visitor's browser send requests to a server on the visitor's machine, and by pointing
its own DNS name at 127.0.0.1 it can even make them look same-origin. The first is recognised by `Origin` and
`Sec-Fetch-Site`, which the browser sets, the second by `Host`, which still carries the page's name.
"""

import ipaddress
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

__all__ = ["ANY", "AllowedHosts", "AllowedOrigins"]

ANY = "*"
"""In a list of hosts or origins: every one is accepted."""


class AllowedHosts:
    """The host names under which a server may be addressed.

    With `names`, those are accepted and all others refused, on every connection. Without, only connections to
    a loopback address are checked, and only while the server asks for no token and listens on nothing but
    loopback: there the names of the machine itself are accepted (`localhost`, `127.0.0.0/8`, `::1`). A server
    in a container or behind a proxy is reached by names that it cannot know.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names)
        self.checks_loopback = True
        """Whether connections to a loopback address are checked where no names were given."""

    def accept(self, scope: Scope, headers: Headers) -> bool:
        """Whether a request may be addressed to this host. One without a `Host` comes from no browser."""
        host = headers.get("host")
        if host is None or ANY in self._names:
            return True
        name = _name_in(host)
        if self._names:
            return name in self._names or host.lower() in self._names or _is_local(name)
        return not self.checks_loopback or not _arrived_on_loopback(scope) or _is_local(name)


class AllowedOrigins:
    """The web pages whose scripts may send requests: the server's own, and those of `origins`."""

    def __init__(self, origins: Collection[str] = ()) -> None:
        self._origins = frozenset(origins)

    def lists(self, origin: str | None) -> bool:
        """Whether this origin is configured, so that its scripts may read the answers too."""
        return origin is not None and (origin in self._origins or ANY in self._origins)

    def accept(self, scope: Scope, headers: Headers) -> bool:
        """Whether a request comes from a page that may send it, or from no page at all."""
        site = headers.get("sec-fetch-site")
        if site in ("same-origin", "none"):
            return True
        origin = headers.get("origin")
        if origin is not None:
            return self.lists(origin) or _netloc_in(origin) == headers.get("host")
        return site is None or _is_navigation(scope, headers)


def _is_navigation(scope: Scope, headers: Headers) -> bool:
    """A link from another site to a page here, which its visitor sees."""
    return scope.get("method") in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"


def _arrived_on_loopback(scope: Scope) -> bool:
    server = scope.get("server")
    return server is not None and server[1] is not None and _is_loopback_address(server[0])


def _netloc_in(origin: str) -> str:
    """The host and port of an `Origin` header; empty if it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _name_in(host: str) -> str:
    """A `Host` header without its port; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def _is_local(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost") or _is_loopback_address(name)


@lru_cache(maxsize=256)
def _is_loopback_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
