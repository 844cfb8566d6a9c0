"""Many sessions at once, and a line, a server or a client that fails them."""

import asyncio
import random
import signal
import time
from collections.abc import Callable

import pytest

from envtorch.errors import Draining, EnvTorchError
from tests.faults.counting import Add, CountingEnv, counting_server, expected
from tests.faults.proxy import proxy_to
from tests.support import PATIENCE_S, eventually

SESSIONS = 200


async def play_while(url: str, seed: int, wanted: Callable[[], bool], stepped: Callable[[], None]) -> int:
    """Step while it is wanted; every total is the one that the steps so far must give."""
    async with CountingEnv.aio(
        url, heartbeat_s=5, connect_timeout_s=PATIENCE_S, message_timeout_s=120
    ) as env:
        total = (await env.reset(seed=seed)).observation.total
        steps = 0
        while wanted():
            result = await env.step(Add(n=steps, wait_s=0.01 if steps % 5 == 0 else 0.0))
            total = (total * 3 + steps) % 1_000_003
            assert result.observation.total == total, f"step {steps} was lost or doubled"
            steps += 1
            stepped()
            await asyncio.sleep(0.02)
        assert (await env.state()).step_count == steps
    return steps


workers = pytest.mark.parametrize("workers", [1, 2], ids=["one process", "two workers"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@workers
def test_random_cuts(workers: int, request: pytest.FixtureRequest) -> None:
    seconds = request.config.getoption("--fault-seconds")

    async def run(port: int) -> tuple[int, int]:
        dice = random.Random(11)
        async with proxy_to(port) as proxy:
            url = f"http://127.0.0.1:{proxy.port}"
            deadline = time.monotonic() + seconds

            async def vandal() -> None:
                while True:
                    await asyncio.sleep(dice.uniform(0.005, 0.05))
                    proxy.cut_one(dice)

            cutting = asyncio.ensure_future(vandal())
            in_time = lambda: time.monotonic() < deadline  # noqa: E731
            steps = await asyncio.gather(
                *(play_while(url, seed, in_time, lambda: None) for seed in range(SESSIONS))
            )
            cutting.cancel()
            return sum(steps), proxy.faults

    with counting_server(workers=workers) as server:
        steps, faults = asyncio.run(run(server.port))
        print(f"{SESSIONS} sessions, {steps} steps, {faults} cuts in {seconds:g} s: none lost, none doubled")
        assert faults > seconds
        assert server.metric('envtorch_calls_total{kind="step"}') == steps
        eventually(lambda: server.sessions() == 0, "no session is left", timeout_s=PATIENCE_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_that_is_stopped_for_five_seconds() -> None:
    """In mid-load: every session has stepped before, and steps again after, and none sees an error."""
    players = 40

    async def main() -> list[int]:
        with counting_server() as server:
            total = 0
            wanted = True

            def stepped() -> None:
                nonlocal total
                total += 1

            playing = asyncio.gather(
                *(play_while(server.url, seed, lambda: wanted, stepped) for seed in range(players))
            )
            while total < 5 * players:  # noqa: ASYNC110  # any of them may have made the step
                await asyncio.sleep(0.05)
            server.send(signal.SIGSTOP)
            await asyncio.sleep(5)
            server.send(signal.SIGCONT)
            before = total
            while total < before + 5 * players:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            wanted = False
            return list(await playing)

    assert min(asyncio.run(main())) > 1


@pytest.mark.timeout(600)
@workers
def test_sigterm_under_load(workers: int) -> None:
    """Running steps are answered, every client is told, the exit code is 0, before the deadline."""
    sessions = 60

    async def play(url: str, steps: list[int], ready: asyncio.Barrier) -> str:
        async with CountingEnv.aio(url, reconnect_s=5) as env:
            await env.reset(seed=1)
            await ready.wait()
            total = 1
            try:
                while True:
                    result = await env.step(Add(n=1, wait_s=0.5))
                    total = (total * 3 + 1) % 1_000_003
                    assert result.observation.total == total
                    steps.append(total)
            except Draining:
                return "told"
            except EnvTorchError as error:
                return repr(error)

    async def main() -> tuple[list[str], int, int, float]:
        with counting_server(drain_s=20, workers=workers) as server:
            steps: list[int] = []
            ready = asyncio.Barrier(sessions + 1)
            players = [asyncio.ensure_future(play(server.url, steps, ready)) for _ in range(sessions)]
            await ready.wait()
            await asyncio.sleep(0.2)  # every step takes half a second: all of them now run
            began = time.monotonic()
            server.send(signal.SIGTERM)
            endings = list(await asyncio.gather(*players))
            code = await asyncio.to_thread(server.process.wait, 30)
            return endings, len(steps), code, time.monotonic() - began

    endings, answered, code, seconds = asyncio.run(main())
    assert endings == ["told"] * sessions
    assert answered >= sessions, "every step that ran was answered"
    assert code == 0
    assert seconds < 20, "well before the drain deadline"


def test_expected_totals_depend_on_every_step() -> None:
    assert expected(1, 3) == [1, 3, 10, 32]
