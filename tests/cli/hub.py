"""As much of the Hugging Face hub as `push` needs, on loopback: it makes repositories and takes commits."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """What the hub was sent."""

    token: str
    url: str = ""
    repositories: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


@contextmanager
def a_hub(token: str) -> Iterator[Hub]:
    hub = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._say({"error": "Invalid credentials"}, 401)
            elif self.path == "/api/repos/create":
                hub.repositories.append(json.loads(body))
                self._say({"url": f"{hub.url}/spaces/me/game", "name": "me/game", "id": "1"})
            elif self.path == "/api/validate-yaml":
                self._say({"errors": [], "warnings": []})
            elif "/preupload/" in self.path:
                files = json.loads(body)["files"]
                told = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
                self._say({"files": told})
            elif "/commit/" in self.path:
                for line in body.splitlines():
                    part = json.loads(line)
                    if part["key"] == "file":
                        hub.files[part["value"]["path"]] = base64.b64decode(part["value"]["content"])
                self._say(
                    {"commitUrl": f"{hub.url}/spaces/me/game/commit/1", "commitOid": "1", "hookOutput": ""}
                )
            else:
                self._say({"error": f"no such route: {self.path}"}, 404)

        def do_GET(self) -> None:
            self._say({"error": f"no such route: {self.path}"}, 404)

        def _say(self, what: dict[str, Any], status: int = 200) -> None:
            data = json.dumps(what).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
