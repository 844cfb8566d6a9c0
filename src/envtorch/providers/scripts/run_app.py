"""Serves an ASGI application on a listening socket that was handed down.

    python run_app.py FD MODULE:ATTRIBUTE [MODULE:FUNCTION]

The third argument names a function that serves the application, as `envtorch.server.serve:serve` does.
Without it uvicorn does, which is all that the interpreter needs then: not even EnvTorch. `uvicorn --fd` would
do, if it did not take every socket for a Unix one and so leave small packets waiting.
"""

import os
import socket
import sys
from importlib import import_module
from typing import Any


def load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    found: Any = import_module(module)
    for part in (attribute or "app").split("."):
        found = getattr(found, part)
    return found


def main(fd: int, application: str, server: "str | None" = None) -> None:
    listener = socket.socket(fileno=fd)
    app = load(application)
    options: dict[str, Any] = {"log_level": "info", "access_log": False}
    if server is not None:
        load(server)(app, listener=listener, **options)
        return
    import uvicorn

    config = uvicorn.Config(app, ws_max_size=100 * 1024 * 1024, **options)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as with `python -m`: the application, not this script's neighbours
    main(int(sys.argv[1]), *sys.argv[2:])
