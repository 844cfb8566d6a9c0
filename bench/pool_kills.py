"""EnvPool under load while its replicas are killed: what became of every episode.

    python bench/pool_kills.py [process|docker] [--seconds 60] [--every 5]

Four replicas; every few seconds one of those that serve is killed. The echo image must be there for docker
(`python examples/local_echo_env.py docker` builds it).
"""

import argparse
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from envtorch.envs.echo_env import EchoAction, EchoEnv
from envtorch.pool import EnvPool, Finished
from envtorch.providers import ProcessProvider
from envtorch.providers.provider_base import Phase

STEPS = 20


def play(env: EchoEnv, item: int) -> int:
    env.reset(seed=item)
    for step in range(STEPS):
        assert env.step(EchoAction(message=f"{item} {step}")).observation.echoed_message == f"{item} {step}"
    return env.state().step_count


def kill(provider: Any) -> None:
    server = provider._server
    if isinstance(provider, ProcessProvider):
        server._process.kill()
    else:
        server._container.kill()


def main(kind: str, seconds: float, every: float) -> None:
    providers: list[Any] = []
    if kind == "docker":
        from envtorch.providers import LocalDockerProvider

        make_one, image = LocalDockerProvider, "echo-env:latest"
    else:
        make_one, image = ProcessProvider, "envtorch.envs.echo_env.app:app"

    def make() -> Any:
        providers.append(make_one())
        return providers[-1]

    over = threading.Event()
    killed = 0

    def killing() -> None:
        nonlocal killed
        while not over.wait(every):
            alive = [p for p in providers if p._server is not None and p.status().phase is Phase.RUNNING]
            if alive:
                kill(random.choice(alive))
                killed += 1

    def items() -> Iterator[int]:
        for number in itertools.count():
            if over.is_set():
                return
            yield number

    with EnvPool(EchoEnv, make, image, replicas=4, sessions_per_replica=4, check_every_s=0.5) as pool:
        with pool.session() as env:
            env.reset()
        started = time.monotonic()
        threading.Timer(seconds, over.set).start()
        threading.Thread(target=killing, daemon=True).start()
        outcomes = list(pool.run(play, items(), attempts=5))
        spent = time.monotonic() - started
        status = pool.status()
    finished = [o for o in outcomes if isinstance(o, Finished)]
    items_seen = Counter(o.item for o in outcomes)
    lost = Counter(type(e).__name__ for o in outcomes for e in o.lost)
    print(
        f"{spent:.0f} s, {killed} kills: {status.replaced} replicas that served, the rest while they started"
    )
    failed = len(outcomes) - len(finished)
    print(f"{len(outcomes)} episodes of {STEPS} steps: {len(finished)} finished, {failed} failed")
    again = sum(bool(o.lost) for o in finished)
    print(f"{again} of those finished were played again; attempts lost: {dict(lost)}")
    missing = set(range(len(outcomes))) - set(items_seen)
    twice = sum(count > 1 for count in items_seen.values())
    print(f"items without an outcome: {len(missing)}; items with more than one: {twice}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", choices=("process", "docker"), default="process")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=5.0)
    given = parser.parse_args()
    main(given.kind, given.seconds, given.every)
