"""A game with branches: forks of a session, and ways back to where it stood before. Nothing is drawn here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from envtorch.client import AsyncEnvClient, GenericEnvClient
from envtorch.errors import CapacityReached, EnvTorchError, Unsupported
from envtorch.types import StepResult

__all__ = ["Game", "PlayedBranch", "Turn"]

KEPT = 12
"""How many earlier moments of a branch are kept as live sessions to go back to."""

Client = AsyncEnvClient[dict[str, Any], dict[str, Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One line of a history: what was given, and what came of it."""

    step: int
    given: dict[str, Any]
    observation: Any
    reward: Any = None
    done: bool = False
    error: str | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, step: int, given: dict[str, Any], result: "StepResult[Any]") -> "Turn":
        return cls(step, given, result.observation, result.reward, result.done)


@dataclass(slots=True)
class PlayedBranch:
    """One session and its history so far. `turns[0]` is the reset."""

    name: str
    client: Client
    turns: list[Turn] = field(default_factory=list)
    saved: dict[int, Client] = field(default_factory=dict)
    """Copies of the session as it was after a step, to go back to."""

    @property
    def total(self) -> float:
        return sum(float(turn.reward or 0.0) for turn in self.turns)

    @property
    def is_over(self) -> bool:
        return bool(self.turns) and self.turns[-1].done

    async def let_go(self) -> None:
        for client in (self.client, *self.saved.values()):
            await client.close()
        self.saved.clear()


class Game:
    """The branches that a person plays, on one server."""

    def __init__(self, url: str, *, token: str | None = None, options: dict[str, Any] | None = None) -> None:
        self.url = url
        self._token = token
        self._options = options or {}
        self.branches: list[PlayedBranch] = []
        self.current = 0
        self.can_save: str | None = None
        """Why no copies can be kept, when they cannot; the way back is then to play again."""

    @property
    def branch(self) -> PlayedBranch:
        return self.branches[self.current]

    async def open(self) -> None:
        self.branches = [PlayedBranch("main", await self._connect())]

    async def _connect(self) -> Client:
        return await GenericEnvClient.aio(self.url, token=self._token, wait_s=5.0).connect()

    async def reset(self, options: dict[str, Any]) -> Turn:
        """Begin an episode in this branch."""
        branch, given = self.branch, {**self._options, **options}
        result = await branch.client.reset(**given)
        for saved in branch.saved.values():
            await saved.close()
        branch.saved.clear()
        branch.turns = [Turn.of(0, given, result)]
        return branch.turns[-1]

    async def step(self, action: dict[str, Any]) -> Turn:
        """Take an action in this branch. The session as it is now is kept, where it can be copied."""
        branch = self.branch
        await self._save(branch)
        result = await branch.client.step(action)
        branch.turns.append(Turn.of(len(branch.turns), action, result))
        return branch.turns[-1]

    async def _save(self, branch: PlayedBranch) -> None:
        if self.can_save is not None or not branch.turns:
            return
        step = len(branch.turns) - 1
        try:
            if step not in branch.saved:
                (branch.saved[step],) = await branch.client.fork(1)
            for old in sorted(branch.saved)[:-KEPT]:
                await branch.saved.pop(old).close()
        except (Unsupported, CapacityReached) as error:
            self.can_save = error.message

    async def fork(self) -> PlayedBranch:
        """A branch of its own that begins where this one stands, and is then the current one."""
        await self._make_room()
        (client,) = await self.branch.client.fork(1)
        branch = PlayedBranch(f"fork {len(self.branches)}", client, list(self.branch.turns))
        self.branches.append(branch)
        self.current = len(self.branches) - 1
        return branch

    async def _make_room(self) -> None:
        """What is kept for the way back gives way to what a person asks for."""
        if self.can_save is None or not self.branch.saved:
            return
        oldest = min(self.branch.saved)
        await self.branch.saved.pop(oldest).close()

    async def go_back(self, step: int) -> str:
        """Let this branch stand where it stood after `step`; how that was done."""
        branch = self.branch
        if not 0 <= step < len(branch.turns) - 1:
            raise Unsupported("choose an earlier line of the history to go back to")
        saved = branch.saved.pop(step, None)
        if saved is not None:
            await branch.client.close()
            branch.client = saved
            how = "the session kept from then"
        else:
            await self._play_again(branch, branch.turns[: step + 1])
            how = "played again from the reset"
        for later in [key for key in branch.saved if key > step]:
            await branch.saved.pop(later).close()
        branch.turns = branch.turns[: step + 1]
        return how

    async def _play_again(self, branch: PlayedBranch, turns: Sequence[Turn]) -> None:
        await branch.client.reset(**turns[0].given)
        for turn in turns[1:]:
            result = await branch.client.step(turn.given)
            if result.observation != turn.observation:
                raise EnvTorchError(
                    f"step {turn.step} came out differently when played again: reset with a seed to go back"
                )

    async def close(self) -> None:
        for branch in self.branches:
            await branch.let_go()
        self.branches = []
