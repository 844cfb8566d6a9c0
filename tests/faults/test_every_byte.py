"""A connection broken at every byte of a 30-step episode, in both directions: nobody notices.

Each byte is tried with one kind of fault, in turn; `--every-fault` tries each kind at each. The everyday
suite tries one byte in forty-one (`--fault-stride`); `make test-faults` leaves none out.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from envtorch.client.client_options import Wire
from tests.faults.counting import Add, CountingEnv, CountingServer, counting_server, expected
from tests.faults.proxy import Break, Direction, Fault, proxy_to
from tests.support import PATIENCE_S, eventually

STEPS = 30
AT_ONCE = 24


@pytest.fixture(scope="module")
def server() -> Iterator[CountingServer]:
    with counting_server() as process:
        yield process


async def play(url: str, wire: Wire, seed: int, at_the_end: Callable[[], None] = lambda: None) -> None:
    """One episode; whatever happens on the line, it is the episode that it should be."""
    client = CountingEnv.aio(
        url,
        wire=wire,
        heartbeat_s=0.5,
        connect_timeout_s=PATIENCE_S,
        message_timeout_s=PATIENCE_S,
        reconnect_s=50,
    )
    async with client as env:
        totals = [(await env.reset(seed=seed)).observation.total]
        rewards = []
        for n in range(STEPS):
            result = await env.step(Add(n=n))
            totals.append(result.observation.total)
            rewards.append(result.reward)
        state = await env.state()
        at_the_end()
    assert totals == expected(seed, STEPS)
    assert rewards == [total % 7 for total in totals[1:]]
    assert state.step_count == STEPS


async def undisturbed(port: int, wire: Wire) -> dict[Direction, int]:
    """How many bytes an episode takes in each direction; the least of three, as a slow start adds some."""
    runs: list[dict[Direction, int]] = []
    for _ in range(3):
        async with proxy_to(port) as proxy:
            await play(f"http://127.0.0.1:{proxy.port}", wire, 7, lambda: runs.append(dict(proxy.forwarded)))
    return {direction: min(run[direction] for run in runs) for direction in Direction}


async def disturbed(port: int, wire: Wire, planned: Break) -> int:
    async with proxy_to(port, planned) as proxy:
        try:
            await play(f"http://127.0.0.1:{proxy.port}", wire, seed=7)
        except Exception as error:
            raise AssertionError(f"{wire}, {planned}: {error!r}") from error
        return proxy.faults


async def try_all(port: int, wire: Wire, breaks: list[Break]) -> int:
    """Every break, a few at a time; how many of them happened."""
    waiting = iter(breaks)
    happened = 0

    async def work() -> None:
        nonlocal happened
        for planned in waiting:
            faults = await disturbed(port, wire, planned)
            happened += faults

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    return happened


def planned_breaks(lengths: dict[Direction, int], *, stride: int, every_fault: bool = False) -> list[Break]:
    kinds = list(Fault)
    breaks = []
    for direction, length in lengths.items():
        for at in range(0, length, stride):
            chosen = kinds if every_fault else [kinds[at % len(kinds)]]
            breaks += [Break(fault, direction, at) for fault in chosen]
    return breaks


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_a_break_at_every_byte(wire: Wire, server: CountingServer, request: pytest.FixtureRequest) -> None:
    lengths = asyncio.run(undisturbed(server.port, wire))
    stride = request.config.getoption("--fault-stride")
    breaks = planned_breaks(lengths, stride=stride, every_fault=request.config.getoption("--every-fault"))
    happened = asyncio.run(try_all(server.port, wire, breaks))
    print(f"{wire}: {len(breaks)} breaks tried, {happened} happened, every episode whole")
    assert happened == len(breaks)
    eventually(lambda: server.sessions() == 0, "no session is left", timeout_s=PATIENCE_S)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_break_that_leads_to_another_worker(request: pytest.FixtureRequest) -> None:
    """Two workers: a client that reconnects may reach either, and its session is with the first."""
    with counting_server(workers=2) as server:
        lengths = asyncio.run(undisturbed(server.port, "json"))
        stride = 3 * request.config.getoption("--fault-stride")
        breaks = planned_breaks(lengths, stride=stride)
        happened = asyncio.run(try_all(server.port, "json", breaks))
        print(f"two workers: {len(breaks)} breaks tried, {happened} happened, every episode whole")
        assert happened == len(breaks)
        eventually(lambda: server.sessions() == 0, "no session is left", timeout_s=PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_the_blocking_client_notices_as_little(wire: Wire, server: CountingServer) -> None:
    lengths = asyncio.run(undisturbed(server.port, wire))
    breaks = planned_breaks(lengths, stride=97)
    happened = asyncio.run(_blocking(server.port, wire, breaks))
    print(f"{wire}: {len(breaks)} breaks tried on the blocking client, {happened} happened")
    assert happened >= len(breaks) - 2, "the two clients greet the server at slightly different length"


async def _blocking(port: int, wire: Wire, breaks: list[Break]) -> int:
    happened = 0
    for planned in breaks:
        async with proxy_to(port, planned) as proxy:
            await asyncio.to_thread(play_blocking, f"http://127.0.0.1:{proxy.port}", wire)
            happened += proxy.faults
    return happened


def play_blocking(url: str, wire: Wire) -> None:
    with CountingEnv(url, wire=wire, heartbeat_s=0.1, connect_timeout_s=PATIENCE_S) as env:
        totals = [env.reset(seed=3).observation.total]
        totals += [env.step(Add(n=n)).observation.total for n in range(STEPS)]
        assert totals == expected(3, STEPS)
        assert env.state().step_count == STEPS
