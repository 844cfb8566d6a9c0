"""What `recover="replay"` costs: `python -m bench.recovery [steps ...]`.

For episodes of so many steps of the echo environment: the memory of their log, the CPU time of the client for
a step with and without it, and how long a recovery takes, from the next step after the server's death to its
answer. The last two columns are of a vector of 64 sessions: the client's CPU for a step of one session, and
how long all of them take to be recovered.
"""

import os
import signal
import sys
import time
import tracemalloc

from envtorch.client.blocking.links import SocketLink
from envtorch.client.episode_log import Played
from envtorch.client.replaying import Replaying
from envtorch.envs.echo_env import EchoAction, EchoEnv
from envtorch.protocol.wire import Ask
from envtorch.providers import ProcessProvider
from envtorch.providers.child import ChildServer

SESSIONS = 64
APP = "envtorch.envs.echo_env.app:app"
ACTION = EchoAction(message="a message of an ordinary length, as an agent may write it")


def started() -> tuple[ProcessProvider, str]:
    provider = ProcessProvider()
    url = provider.start_container(APP)
    provider.wait_for_ready(url, timeout_s=120)
    return provider, url


def kill(provider: ProcessProvider) -> None:
    server = provider._server
    assert isinstance(server, ChildServer)
    os.kill(server.pid, signal.SIGKILL)
    while provider.status().is_alive:
        time.sleep(0.01)


def play(env: EchoEnv, steps: int) -> float:
    """CPU microseconds of this process for a step."""
    env.reset(seed=1)
    began = time.process_time()
    for _ in range(steps):
        env.step(ACTION)
    return (time.process_time() - began) / steps * 1e6


def recovered(steps: int) -> tuple[float, float, float, float]:
    """Bytes of log a step, client's CPU of a step (plain, logged), seconds to recover."""
    (first, here), (second, there) = started(), started()
    with first, second:
        with EchoEnv(there) as plain:
            play(plain, steps)
            plain_us = play(plain, steps)
        with EchoEnv(here, recover="replay", elsewhere=[there]) as env:
            logged_us = play(env, steps)
            tracemalloc.start()
            held = log_bytes(env)
            tracemalloc.stop()
            kill(first)
            began = time.perf_counter()
            env.step(ACTION)
            took_s = time.perf_counter() - began
    return held / steps, plain_us, logged_us, took_s


def recovered_vector(steps: int) -> tuple[float, float]:
    """The client's CPU of a session's step, microseconds; seconds to recover a vector."""
    (first, here), (second, there) = started(), started()
    actions = [ACTION] * SESSIONS
    with first, second, EchoEnv.vector(here, SESSIONS, recover="replay", elsewhere=[there]) as envs:
        envs.reset(seed=1)
        began = time.process_time()
        for _ in range(steps):
            envs.step(actions)
        step_us = (time.process_time() - began) / steps / SESSIONS * 1e6
        kill(first)
        began = time.perf_counter()
        assert envs.step(actions).errors == {}
        return step_us, time.perf_counter() - began


def log_bytes(env: EchoEnv) -> int:
    """The memory of a copy of the log."""
    link = env._link
    assert isinstance(link, SocketLink)
    assert isinstance(link._session, Replaying)
    copies = [copied(played) for played in link._session.log.plays]
    before = tracemalloc.get_traced_memory()[0]
    del copies
    return before - tracemalloc.get_traced_memory()[0]


def copied(played: Played) -> Played:
    data = bytes(bytearray(played.ask.data or b""))
    return Played(Ask(played.ask.type, data), bytes(bytearray(played.digest)))


def main() -> None:
    titles = f"{'steps':>7} {'log, bytes/step':>16} {'CPU us/step':>12} {'with log':>9} {'recovery, s':>12}"
    print(f"{titles} {'vector us/step':>15} {'recovery, s':>12}")
    for steps in [int(word) for word in sys.argv[1:]] or [10, 100, 1000]:
        held, plain_us, logged_us, took_s = recovered(steps)
        alone = f"{steps:7,} {held:16.0f} {plain_us:12.0f} {logged_us:9.0f} {took_s:12.2f}"
        vector_us, vector_s = recovered_vector(steps)
        print(f"{alone} {vector_us:15.0f} {vector_s:12.2f}", flush=True)


if __name__ == "__main__":
    main()
