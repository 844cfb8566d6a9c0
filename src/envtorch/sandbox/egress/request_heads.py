"""Requests to the proxy, read strictly: what two programs could read in two ways is refused."""

import re
from dataclasses import dataclass

from .destinations import Address, normal_host

MOST_HEAD_BYTES = 16 * 1024
_MOST_FIELDS = 100
END = b"\r\n\r\n"
_LINE = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]{1,8000}) HTTP/1\.[01]")
_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_DROPPED = frozenset(
    (b"host", b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"expect", b"content-length")
)
"""Said anew, or about the connection to the proxy only. Those that begin with `proxy-` are dropped, too."""


class RefusedRequest(Exception):
    """A request that is refused; `status` is what the answer says."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request of the session."""

    method: str
    host: str | Address
    port: int
    forward: bytes = b""
    """What the server is sent; empty for CONNECT."""
    body_length: int = 0

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"


def read_head(head: bytes) -> RequestHead:
    """The request in `head`, which ends with an empty line. Raises `RefusedRequest`."""
    first, *lines = head.removesuffix(END).split(b"\r\n")
    match = _LINE.fullmatch(first)
    if match is None:
        raise RefusedRequest(400, "the first line is no request of HTTP/1")
    if len(lines) > _MOST_FIELDS:
        raise RefusedRequest(400, f"a request may have {_MOST_FIELDS} headers")
    method, target = match[1].decode(), match[2].decode()
    fields = [_field(line) for line in lines]
    if method == "CONNECT":
        host, port = _authority(target, None)
        return RequestHead(method, host, port)
    if not target.lower().startswith("http://"):
        raise RefusedRequest(400, "a proxy takes CONNECT, and other requests with a whole http:// address")
    authority, path = re.fullmatch(r"([^/?#]*)([^#]*)(?:#.*)?", target[7:]).groups()  # type: ignore[union-attr]
    host, port = _authority(authority, 80)
    length = _body_length(fields)
    dropped = _DROPPED | _named_by_connection(fields)
    kept = [
        name + b": " + value
        for name, value in fields
        if name.lower() not in dropped and not name.lower().startswith(b"proxy-")
    ]
    resource = (path if path.startswith("/") else f"/{path}").encode()
    start = method.encode() + b" " + resource + b" HTTP/1.1"
    ours = [b"Host: " + authority.encode(), b"Connection: close"]
    if length or method in ("POST", "PUT", "PATCH"):
        ours.append(b"Content-Length: %d" % length)
    return RequestHead(method, host, port, b"\r\n".join([start, *ours, *kept]) + END, length)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise RefusedRequest(400, "a header is malformed")
    return name, value.strip(b" \t")


def _authority(text: str, usual: int | None) -> tuple[str | Address, int]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:@\[\]]+)(?::([0-9]{1,5}))?", text)
    if match is None:
        raise RefusedRequest(400, "the address is malformed, or holds a user or a password")
    port = int(match[2]) if match[2] else usual
    if port is None or not 0 < port < 65536:
        raise RefusedRequest(400, "the address has no port")
    try:
        return normal_host(match[1]), port
    except ValueError as error:
        raise RefusedRequest(400, str(error)) from None


def _body_length(fields: list[tuple[bytes, bytes]]) -> int:
    named = {b"transfer-encoding": 0, b"content-length": 0, b"host": 0}
    length = 0
    for name, value in fields:
        if name.lower() in named:
            named[name.lower()] += 1
        if name.lower() == b"content-length":
            if not _LENGTH.fullmatch(value):
                raise RefusedRequest(400, "Content-Length is no number")
            length = int(value)
    if named[b"transfer-encoding"]:
        raise RefusedRequest(411, "a body without Content-Length is taken over https only")
    if max(named.values()) > 1:
        raise RefusedRequest(400, "a header that may occur once occurs twice")
    return length


def _named_by_connection(fields: list[tuple[bytes, bytes]]) -> frozenset[bytes]:
    values = (value for name, value in fields if name.lower() == b"connection")
    return frozenset(word.strip().lower() for value in values for word in value.split(b","))
