"""The zygote: the environment's module, loaded and warm, in a process of one thread that forks sessions."""

import gc
import os
import signal
import socket
from typing import Any, NoReturn

from envtorch.env import EnvSpec, load_object
from envtorch.errors import encodable
from envtorch.protocol.codec import Codec
from envtorch.server.runners.process.process_child import Seed, run_session_process
from envtorch.server.runners.process.process_messages import Plan, Unfit, ZygoteReady, pack
from envtorch.server.runners.process.process_spawning import branch, die_with_parent, threads
from envtorch.server.sessions.environment_factory import Factory

__all__ = ["main"]


def main(keeper: int, lifeline: socket.socket, spawning: socket.socket, warm: int, plan: Plan) -> NoReturn:
    """Load what `plan` names, then fork a session for each descriptor that comes."""
    try:
        die_with_parent(keeper)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        try:
            seed = load(plan, keeper)
        except BaseException as error:  # foreign code: whatever it does is the reason
            lifeline.send(pack(Unfit(encodable(f"{type(error).__name__}: {error}"))))
            os._exit(0)
        os.write(warm, b"w")
        lifeline.send(pack(ZygoteReady()))
        lifeline.close()
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page of the modules
        while True:
            data, descriptors, _, _ = socket.recv_fds(spawning, 64, 1)
            if not data:
                os._exit(0)
            if branch(keeper):
                run_session_process(seed, descriptors[0])
            for descriptor in descriptors:
                os.close(descriptor)
    finally:
        os._exit(1)


def load(plan: Plan, keeper: int) -> Seed:
    """Everything that sessions have in common."""
    for prelude in plan.preludes:
        load_object(prelude)()
    spec: EnvSpec[Any, Any, Any] = EnvSpec(
        load_object(plan.action),
        load_object(plan.observation),
        load_object(plan.state),
        load_object(plan.reset_observation) if plan.reset_observation else None,
        name=plan.name,
        requires_reset=plan.requires_reset,
    )
    factory = Factory.of(load_object(plan.source))
    count = threads()
    if count > 1:
        raise RuntimeError(
            f"{plan.source} starts {count - 1} threads when it is imported, which a fork would not copy: "
            "start them in the environment's constructor"
        )
    return Seed(factory, Codec(spec), keeper)
