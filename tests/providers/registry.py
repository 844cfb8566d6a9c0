"""Fakes of what a container engine talks to, and of an engine: real HTTP, real answers, nothing behind."""

import gzip
import hashlib
import io
import json
import secrets
import socketserver
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def one_layer_image(size: int = 100_000) -> tuple[bytes, dict[str, bytes]]:
    """A manifest, and the blobs it names: an image with one file in it, which no engine has seen before."""
    content = secrets.token_bytes(size)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        member = tarfile.TarInfo("hello")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    packed = gzip.compress(layer.getvalue(), mtime=0)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/hello"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer.getvalue())]},
        }
    ).encode()
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(config),
                "digest": _digest(config),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(packed),
                    "digest": _digest(packed),
                }
            ],
        }
    ).encode()
    return manifest, {_digest(config): config, _digest(packed): packed}


class _Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def registry(*, denies: bool = False, megabytes: float = 0.1) -> Iterator[str]:
    """A registry on loopback with the image `host:port/one:1`; its address."""
    manifest, blobs = one_layer_image(int(megabytes * 1_000_000))

    class Registry(_Quiet):
        def do_GET(self) -> None:
            last = self.path.rpartition("/")[2]
            if denies and self.path != "/v2/":
                refused = {"code": "DENIED", "message": "requested access to the resource is denied"}
                self.answer(403, json.dumps({"errors": [refused]}).encode())
            elif "/manifests/" in self.path:
                self.answer(200, manifest, "application/vnd.docker.distribution.manifest.v2+json")
            elif last in blobs:
                self.answer(200, blobs[last], "application/octet-stream")
            else:
                self.answer(200 if self.path == "/v2/" else 404, b"{}")

        def do_HEAD(self) -> None:
            self.do_GET()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def engine_that_pulls_like(path: Path, events: list[dict[str, Any]]) -> Iterator[str]:
    """A container engine that has no image, and answers a pull with `events`; its address."""

    class Engine(_Quiet):
        protocol_version = "HTTP/1.1"

        def address_string(self) -> str:
            return "unix"

        def do_GET(self) -> None:
            if self.path.endswith("/version"):
                self.answer(200, b'{"ApiVersion": "1.41", "Version": "20.10.24"}')
            elif "/images/" in self.path:
                self.answer(404, b'{"message": "No such image"}')
            else:
                self.answer(200, b"[]")

        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")  # as an engine does: one event, one chunk
            self.end_headers()
            for event in events:
                line = json.dumps(event).encode() + b"\r\n"
                self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

    class UnixServer(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with UnixServer(str(path), Engine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            server.shutdown()
            thread.join()
