"""Serves `Walk`, recorded, in a process whose disk a test can fill: `python -m ... DIRECTORY [required]`."""

import socket
import sys

from envtorch import create_app, serve
from tests.recording.environments import Walk

if __name__ == "__main__":
    app = create_app(Walk, sessions=16, record=sys.argv[1], record_required="required" in sys.argv[2:])
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    serve(app, listener=listener)
