"""Episodes of every kind that an agent may make of a terminal task, each with the reward it must end with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from envtorch.client import AsyncEnvClient
from envtorch.envs.terminal_env import BashAction, SubmitAction, TerminalObservation, TerminalState
from envtorch.envs.terminal_env.harbor import BUNDLED, find_tasks
from envtorch.tools import CallToolAction

TerminalClient = AsyncEnvClient[CallToolAction, TerminalObservation, TerminalState]
NAMES = [path.name for path in find_tasks(BUNDLED)]


@dataclass(frozen=True)
class Played:
    """How an episode ended, and how it should have."""

    rewards: tuple[float | None, ...]
    wanted: tuple[float | None, ...]

    @property
    def ok(self) -> bool:
        return self.rewards == self.wanted


def solution_of(task: str) -> str:
    """A task's own solution, as one command."""
    return f"bash <<'END_OF_SOLUTION'\n{(BUNDLED / task / 'solution/solve.sh').read_text()}\nEND_OF_SOLUTION"


async def submit(env: TerminalClient) -> float | None:
    return (await env.step(SubmitAction())).reward


async def solve(env: TerminalClient, task: str) -> float | None:
    await env.step(BashAction(solution_of(task)))
    return await submit(env)


async def plain(env: TerminalClient, task: str) -> Played:
    return Played((await solve(env, task),), (1.0,))


async def idle(env: TerminalClient, task: str) -> Played:
    return Played((await submit(env),), (0.0,))


async def interrupted(env: TerminalClient, task: str) -> Played:
    late = await env.step(BashAction("sleep 300", timeout_s=0.2))
    assert late.observation.outcome == "timed out", late.observation
    return Played((await solve(env, task),), (1.0,))


async def shell_ended(env: TerminalClient, task: str) -> Played:
    ended = await env.step(BashAction("exit 3"))
    assert ended.observation.shell_ended, ended.observation
    return Played((await solve(env, task),), (1.0,))


async def with_daemons(env: TerminalClient, task: str) -> Played:
    daemon = "setsid bash -c 'while :; do date > /app/now; sleep 0.2; done' >/dev/null 2>&1 &"
    await env.step(BashAction("\n".join([daemon] * 3)))
    return Played((await submit(env),), (0.0,))


async def forked(env: TerminalClient, task: str) -> Played:
    await env.step(BashAction("echo begun > /tmp/begun; begun=yes"))
    first, second = await env.fork(2)
    async with first, second:
        rewards = await solve(first, task), await submit(second)
    return Played((*rewards, await submit(env)), (1.0, 0.0, 0.0))


async def abandoned(env: TerminalClient, task: str) -> Played:
    await env.step(BashAction("sleep 300 & head -c 5M /dev/urandom > /app/half"))
    return Played((None,), (None,))


KINDS: dict[str, Callable[[TerminalClient, str], Awaitable[Played]]] = {
    "solution": plain,
    "nothing": idle,
    "interrupted, then solution": interrupted,
    "shell ended, then solution": shell_ended,
    "daemons left": with_daemons,
    "forked twice": forked,
    "closed without a submission": abandoned,
}
