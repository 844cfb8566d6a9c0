"""500 episodes of all tasks and all kinds, 64 at once: none is lost, and nothing is left of them."""

import asyncio
import os
import signal
import statistics
import time
from collections import defaultdict
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from envtorch.envs.terminal_env import TerminalEnv
from tests.chaos.servers import ServerProcess, family, is_alive
from tests.chaos.usage import Usage
from tests.complaints import complaints
from tests.envs.terminal_env.episodes import KINDS, NAMES, Played
from tests.sandbox.roots import require_host_root
from tests.support import eventually

EPISODES, AT_ONCE = 500, 64
SPARE = Usage(descriptors=2, threads=1, processes=0, megabytes=float("inf"))
"""What may be on its way."""


class Crowd:
    """Plays episodes, so many at once, and keeps how each ended."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ended: list[tuple[str, str, Played, float]] = []
        self.lost: list[str] = []
        self._numbers = iter(range(EPISODES))

    async def play(self) -> None:
        await asyncio.gather(*(self._player() for _ in range(AT_ONCE)))

    async def _player(self) -> None:
        kinds = list(KINDS)
        for number in self._numbers:
            await self.episode(NAMES[number % len(NAMES)], kinds[number % len(kinds)])

    async def episode(self, task: str, kind: str) -> None:
        began = time.monotonic()
        try:
            async with TerminalEnv.aio(self.url, message_timeout_s=600) as env:
                await env.reset(task=task)
                played = await KINDS[kind](env, task)
        except Exception as error:  # an episode that is lost, for whatever reason, is what this looks for
            self.lost.append(f"{task}, {kind}: {error!r}")
            return
        self.ended.append((task, kind, played, time.monotonic() - began))


def groups_of(pids: list[int]) -> list[Path]:
    """The control groups that some processes have made, with those below them. Groups of others may end
    meanwhile: `os.walk` passes over them."""
    wanted = tuple(f"envtorch-{pid}-" for pid in pids)
    folders = [Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup")]
    return [folder for folder in folders if any(part.startswith(wanted) for part in folder.parts)]


def mounts_of(pids: list[int]) -> int:
    """How many mounts the mount namespaces of some processes have."""
    spaces = {Path(f"/proc/{pid}/ns/mnt").readlink(): pid for pid in pids}
    return sum(len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()) for pid in spaces.values())


def held(server: ServerProcess, folder: Path) -> dict[str, int]:
    """What a server has of each thing that an episode might leave."""
    pids = family(server.process.pid)
    return {
        "processes": len(pids),
        "mounts": mounts_of(pids),
        "control groups": len(groups_of(pids)),
        "files and directories": len(list(folder.rglob("*"))),
    }


def show(crowd: Crowd, before: dict[str, int], after: dict[str, int], took_s: float) -> None:
    by_kind: dict[str, list[float]] = defaultdict(list)
    right: dict[str, int] = defaultdict(int)
    for _, kind, played, seconds in crowd.ended:
        by_kind[kind].append(seconds)
        right[kind] += played.ok
    table = Table("episode", "played", "graded as it must be", "p50", "longest")
    for kind, seconds_of in by_kind.items():
        middle, longest = statistics.median(seconds_of), max(seconds_of)
        table.add_row(kind, str(len(seconds_of)), str(right[kind]), f"{middle:.1f} s", f"{longest:.1f} s")
    console = Console(width=110)
    console.print(table)
    console.print(
        f"{len(crowd.ended)} episodes, {AT_ONCE} at once, in {took_s:.0f} s; lost: {len(crowd.lost)}"
    )
    for what, count in before.items():
        console.print(f"{what}: {count} before, {after[what]} after")


@pytest.mark.terminal
@pytest.mark.timeout(1800)
def test_500_episodes_at_64_at_once_lose_none_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_host_root()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    own_mounts = Path("/proc/self/mountinfo").read_text()
    server = ServerProcess("terminal_env", tmp_path / "log")
    try:
        asyncio.run(warm_up(server.url))
        pid = server.process.pid
        eventually(lambda: len(family(pid)) == 2, "a server and the process that holds its root are left")
        before, usage = held(server, temporary), Usage.of(*family(pid))
        crowd = Crowd(server.url)
        began = time.monotonic()
        asyncio.run(crowd.play())
        took_s = time.monotonic() - began
        eventually(lambda: held(server, temporary) == before, "nothing is left of the episodes")
        eventually(lambda: not Usage.of(*family(pid)).beyond(usage, SPARE), "no descriptor or thread is left")
        show(crowd, before, held(server, temporary), took_s)
        print(f"{usage} before, {Usage.of(*family(pid))} after")
        pids = family(pid)
    finally:
        server.end(signal.SIGTERM)
    assert crowd.lost == []
    assert [one for one in crowd.ended if not one[2].ok] == []
    assert len(crowd.ended) == EPISODES
    assert complaints(server.said) == []
    eventually(lambda: not any(map(is_alive, pids)), "every process of the server has ended")
    assert groups_of(pids) == []
    assert list(temporary.rglob("*")) == []
    assert Path("/proc/self/mountinfo").read_text() == own_mounts


async def warm_up(url: str) -> None:
    """Have the image of each task built, and every thread started that a server starts when first used."""
    crowd = Crowd(url)
    await asyncio.gather(*(crowd.episode(NAMES[number % len(NAMES)], "nothing") for number in range(AT_ONCE)))
    assert crowd.lost == []
