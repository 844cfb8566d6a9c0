"""`envtorch proxy-config`: a proxy's configuration that keeps every session on its replica."""

import ipaddress
import re
from typing import Annotated

import typer

from envtorch.cli.proxy_files import Upstream, haproxy_file, nginx_file
from envtorch.errors import ConfigurationError
from envtorch.replica_names import REPLICA_NAME
from envtorch.settings import Settings

__all__ = ["proxy_config"]

WRITERS = {"nginx": nginx_file, "haproxy": haproxy_file}
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
NUMBERS = re.compile(r"[0-9.]+")
PORT = re.compile(r"[0-9]{1,5}")
EVERY_ADDRESS = "*"


def proxy_config(
    proxy: Annotated[str, typer.Argument(metavar="nginx|haproxy", help="For which proxy.")],
    replicas: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=HOST:PORT...", help="The servers, each started with ENVTORCH_REPLICA=NAME."
        ),
    ],
    listen: Annotated[str, typer.Option(help="Where the proxy listens.")] = "127.0.0.1:8080",
) -> None:
    """Print a configuration of a proxy that gives several servers one address.

    A session's id, its cookie and its Mcp-Session-Id begin with the name of its replica, and clients name it
    when they reconnect: the proxy needs no table. A session stays with its replica while anything listens at
    the replica's address; then another replica answers that the session is lost.
    """
    if proxy not in WRITERS:
        raise ConfigurationError(f"there is no configuration for {proxy!r}: there are {', '.join(WRITERS)}")
    upstreams = [_upstream(text) for text in replicas]
    _require_different([upstream.name for upstream in upstreams])
    max_bytes = Settings.from_environ().max_message_bytes
    typer.echo(WRITERS[proxy](upstreams, _listened(listen), max_bytes))


def _require_different(names: list[str]) -> None:
    """Proxies compare the names of hosts and servers without regard to case."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(name.lower())
        if other is not None:
            told = "the same name" if other == name else "names that differ in upper and lower case only"
            raise ConfigurationError(f"two replicas have {told}: {other!r} and {name!r}")
        seen[name.lower()] = name


def _listened(text: str) -> str:
    """Where to listen: a port alone is one on every address of the machine."""
    host, separator, port = text.rpartition(":")
    if not separator or host == EVERY_ADDRESS:
        _require_port(port, f"--listen {text!r}")
        return f"{EVERY_ADDRESS}:{port}"
    _require_address(text, f"--listen {text!r}", "127.0.0.1:8080")
    return text


def _upstream(text: str) -> Upstream:
    name, separator, address = text.partition("=")
    if not separator:
        raise ConfigurationError(f"{text!r} is no replica: write it as in web-1=10.0.0.7:8000")
    if not REPLICA_NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot be a replica's name: letters, digits, '-' and '.'")
    _require_address(address, repr(text), "web-1=10.0.0.7:8000")
    return Upstream(name, address)


def _require_address(address: str, where: str, example: str) -> None:
    """Raise `ConfigurationError` for anything but a host and a port."""
    if "://" in address:
        raise ConfigurationError(f"{where} has a URL: write a host and a port, as in {example}")
    host, separator, port = address.rpartition(":")
    if not separator:
        raise ConfigurationError(f"{where} has no host and port: write both, as in {example}")
    _require_port(port, where)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigurationError(f"{where} has an IPv6 address without brackets: write it as in [::1]:8000")
    if not _is_host(host):
        raise ConfigurationError(f"{where}: {host!r} is no host: write a name or an address, as in {example}")


def _is_host(host: str) -> bool:
    try:
        if host.startswith("["):
            ipaddress.IPv6Address(host[1:-1])
        elif NUMBERS.fullmatch(host):
            ipaddress.IPv4Address(host)
        else:
            return HOST_NAME.fullmatch(host) is not None
    except ipaddress.AddressValueError:
        return False
    return "%" not in host  # proxies do not take the zone of an IPv6 address


def _require_port(port: str, where: str) -> None:
    if not (PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise ConfigurationError(f"{where}: {port!r} is no port: write a number from 1 to 65535")
