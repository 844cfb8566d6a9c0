"""A coding server worth attacking, in a process of its own: as another user, or in a container.

    python -m tests.envs.coding_env.siege_server [--container] [--host 127.0.0.1] [--port 0]

Prints one line of JSON, which says where it listens, what protects it and what there is to attack, and
serves until it is ended. `/siege` answers whether the owner's secret is still as it was.
"""

import argparse
import dataclasses
import json
import os
import socket

import uvicorn

from envtorch.envs.coding_env import CodeAction, CodeObservation
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.server import create_app
from envtorch.server.serve import uvicorn_config
from tests.sandbox.attack_runner import TIMEOUT_S, besieged, is_unharmed, policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--container", action="store_true", help="no namespaces, though they be allowed")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    limits = dataclasses.replace(policy(container=options.container), timeout_s=TIMEOUT_S)
    app = create_app(
        lambda: CodingEnvironment(policy=limits), CodeAction, CodeObservation, max_concurrent_envs=8
    )
    with (
        besieged(limits) as (target, neighbour),
        socket.create_server((options.host, options.port), backlog=64) as listener,
    ):
        app.add_api_route("/siege", lambda: {"unharmed": is_unharmed(target, within_s=20.0)})
        report = neighbour.report()
        told = {
            "port": listener.getsockname()[1],
            "user": os.getuid(),
            "grade": report.grade,
            "layers": dict(report.layers),
            "target": dataclasses.asdict(target),
        }
        print(json.dumps(told), flush=True)
        uvicorn.Server(uvicorn_config(app)).run(sockets=[listener])


if __name__ == "__main__":
    main()
