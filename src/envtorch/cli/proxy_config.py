"""`envtorch proxy-config`: a proxy's configuration that keeps every session on its replica."""

from typing import Annotated

import typer

from envtorch.cli.proxy_files import Upstream, haproxy_file, nginx_file
from envtorch.errors import ConfigurationError
from envtorch.replica_names import REPLICA_NAME

__all__ = ["proxy_config"]

WRITERS = {"nginx": nginx_file, "haproxy": haproxy_file}


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
    when they reconnect: the proxy needs no table. Sessions of a replica that is gone are answered by another
    one, which says that they are lost.
    """
    if proxy not in WRITERS:
        raise ConfigurationError(f"there is no configuration for {proxy!r}: there are {', '.join(WRITERS)}")
    upstreams = [_upstream(text) for text in replicas]
    names = [upstream.name for upstream in upstreams]
    if len(set(names)) < len(names):
        raise ConfigurationError("two replicas have the same name")
    if not _is_address(listen):
        raise ConfigurationError(f"--listen {listen!r} is no address: write it as in 127.0.0.1:8080")
    typer.echo(WRITERS[proxy](upstreams, listen))


def _is_address(text: str) -> bool:
    """Whether it is a port, or a host and a port."""
    host, separator, port = text.rpartition(":")
    return bool(host or not separator) and port.isdigit() and 0 < int(port) < 65536


def _upstream(text: str) -> Upstream:
    name, separator, address = text.partition("=")
    if not (separator and _is_address(address)):
        raise ConfigurationError(f"{text!r} is no replica: write it as in web-1=10.0.0.7:8000")
    if not REPLICA_NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot be a replica's name: letters, digits, '-' and '.'")
    return Upstream(name, address)
