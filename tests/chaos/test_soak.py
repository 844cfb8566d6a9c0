"""Sessions on a bad line, servers and workers that are killed: nothing twice, nothing hung, nothing left.

`make test-chaos`; `--chaos-seconds` and `--chaos-sessions` say how long and how many.
"""

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from envtorch.client.client_options import Wire
from tests.chaos.environment import Mark, MarkingEnv
from tests.chaos.players import LATEST_S, AsyncPlayer, BlockingPlayer, Player, Tally, VectorPlayer
from tests.chaos.servers import Place, ServerProcess, family, places
from tests.chaos.usage import Usage
from tests.complaints import complaints

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7200)]

AT_ONCE = 200
WIRES: tuple[Wire, ...] = ("json", "msgpack")
SPARE = Usage(descriptors=2, threads=1, processes=0, megabytes=1.0)
"""What may be on its way, or the allocator's."""
WARM_UP = 40_000
"""By then a server remembers as many ended sessions as it ever will, and pydantic as many texts: both are
bounded, at 10,000 and 16,384. A server was seen at 52.9 MB after 1,000 sessions, 58.3 after 21,000, 59.5
after 41,000 and 60.0 after 121,000."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "steps"
    path.touch()
    return path


def executed(log: Path) -> Counter[tuple[str, int]]:
    lines = [line.split() for line in log.read_text().splitlines()]
    return Counter((episode, int(number)) for episode, number in lines)


def show(title: str, rows: dict[str, object]) -> None:
    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(
            name, ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        )
    Console(width=140).print(table)


def crowd(urls: list[str], ends: float) -> tuple[list[BlockingPlayer | VectorPlayer], list[AsyncPlayer]]:
    """Two hundred sessions: a quarter blocking, half asynchronous, a quarter in vectors; on either wire."""
    wanted = lambda: time.monotonic() < ends  # noqa: E731

    def some(kind: type[Player], count: int) -> Iterator[Player]:
        for n in range(count):
            yield kind(f"{kind.__name__}{n}", urls[n // 2 % len(urls)], WIRES[n % 2], wanted)

    blocking = [
        *some(BlockingPlayer, AT_ONCE // 4),
        *some(VectorPlayer, AT_ONCE // 4 // VectorPlayer.SIZE + 1),
    ]
    return blocking, list(some(AsyncPlayer, AT_ONCE // 2))  # type: ignore[return-value, arg-type]


def vandalise(found: list[Place], ends: float) -> None:
    """Kill something every second or two, until shortly before the end."""
    dice = random.Random(5)
    while time.monotonic() < ends - 10:
        time.sleep(dice.uniform(0.5, 3))
        dice.choice(found).strike()


def play(found: list[Place], seconds: float) -> tuple[Tally, list[str]]:
    """All players until the end; what they saw, and who never came back."""
    ends = time.monotonic() + seconds
    blocking, awaited = crowd([place.line.url for place in found], ends)
    threads = [threading.Thread(target=player.play, name=player.name, daemon=True) for player in blocking]

    async def together() -> None:
        await asyncio.gather(*(player.play() for player in awaited))

    threads.append(threading.Thread(target=lambda: asyncio.run(together()), name="asynchronous", daemon=True))
    threads.append(threading.Thread(target=vandalise, args=(found, ends), name="vandal", daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends + LATEST_S - time.monotonic()))
    tally = Tally()
    for player in [*blocking, *awaited]:
        tally += player.tally
    return tally, [thread.name for thread in threads if thread.is_alive()]


def test_a_bad_line_and_servers_that_are_killed(log: Path, request: pytest.FixtureRequest) -> None:
    seconds = request.config.getoption("--chaos-seconds")
    with places(log, faults=5.0) as found:
        tally, stuck = play(found, seconds)
        breaks = sum((place.close() for place in found), Counter[str]())
        kills = sum((place.killed for place in found), Counter[str]())
        left = [pid for place in found for pid in place.left()]
    ran = executed(log)
    doubled = [step for step, times in ran.items() if times > 1]
    missing = [step for step in tally.acknowledged if step not in ran]
    complaints = [line for place in found for line in place.complaints()]
    show(
        f"{seconds:g} s with {AT_ONCE} sessions at a time",
        {
            "sessions": tally.sessions,
            "steps acknowledged": len(tally.acknowledged),
            "steps run": sum(ran.values()),
            "cuts": dict(breaks),
            "kills": dict(kills),
            "losses by type": dict(tally.losses),
            "untyped": len(tally.untyped),
            "doubled": len(doubled),
            "acknowledged, never run": len(missing),
            "another step's answer": len(tally.wrong),
            "hung": len(tally.hung) + len(stuck),
            "processes left": len(left),
            "errors in the servers' logs": len(complaints),
        },
    )
    assert not doubled, doubled[:5]
    assert not missing, missing[:5]
    assert not tally.wrong, tally.wrong[:5]
    assert not tally.untyped, tally.untyped[:5]
    assert [*tally.hung, *stuck] == []
    assert not left
    assert not complaints, complaints[:3]


SAME = Mark(episode="always the same", number=0)
"""One action for all: pydantic keeps up to 16,384 texts that it has read, and each new one would count."""


async def in_turn(url: str, wire: Wire, sessions: int) -> None:
    """So many sessions of asynchronous clients, twenty at a time, each of one step."""
    numbers = iter(range(sessions))

    async def work() -> None:
        for _ in numbers:
            async with MarkingEnv.aio(url, wire=wire) as env:
                await env.reset()
                await env.step(SAME)

    await asyncio.gather(*(work() for _ in range(20)))


def open_and_close(url: str, sessions: int) -> None:
    """So many sessions: one half asynchronous, a tenth blocking, the rest in vectors; on either wire."""
    for wire in WIRES:
        asyncio.run(in_turn(url, wire, sessions // 4))
        for _ in range(sessions // 20):
            with MarkingEnv(url, wire=wire) as env:
                env.reset()
                env.step(SAME)
        for _ in range(sessions // 5 // 40):
            with MarkingEnv.vector(url, 40, wire=wire) as envs:
                envs.reset()
                envs.step([SAME] * 40)


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ("tests.chaos.environment:Marking", []),
        ("tests.chaos.environment:MarkingOnLoop", ["--workers", "2"]),
    ],
    ids=["threads", "two workers"],
)
def test_sessions_leave_nothing_behind(
    environment: str, options: list[str], log: Path, request: pytest.FixtureRequest
) -> None:
    sessions = request.config.getoption("--chaos-sessions")
    server = ServerProcess(environment, log, options)

    def held() -> tuple[Usage, Usage]:
        """The least that client and server hold while some sessions more come and go: what closed
        connections leave in cycles is collected from time to time."""
        samples = []
        for _ in range(10):
            open_and_close(server.url, 200)
            samples.append((Usage.of(os.getpid()), Usage.of(*family(server.process.pid))))
        return Usage.least(one for one, _ in samples), Usage.least(other for _, other in samples)

    try:
        open_and_close(server.url, 1000)
        ours, theirs = held()
        rows: dict[str, object] = {"after 1000: client": ours, "server": theirs}
        open_and_close(server.url, WARM_UP - 1000)
        ours_before, theirs_before = held()
        open_and_close(server.url, sessions)
        leaks: dict[str, dict[str, float]] = {}
        ours_after, theirs_after = held()
        leaks["client"] = ours_after.beyond(ours_before, SPARE)
        leaks["server"] = theirs_after.beyond(theirs_before, SPARE)
        rows |= {f"after {WARM_UP}: client": ours_before, "server ": theirs_before}
        rows |= {
            f"after {WARM_UP + sessions}: client": ours_after,
            " server": theirs_after,
            "leaks": leaks,
        }
        show(" ".join([environment, *options]), rows)
        assert not any(leaks.values()), leaks
    finally:
        server.end(signal.SIGTERM)
    assert complaints(server.said) == []
