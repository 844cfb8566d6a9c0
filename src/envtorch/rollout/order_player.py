"""Plays groups and trees: the engine behind `Rollouts`, and in each of their drivers."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from envtorch.errors import EnvTorchError
from envtorch.rollout.beginnings import Beginning, RolloutClient, SessionPlaces, SharingCosts, close_quietly
from envtorch.rollout.completions import Batcher, BatchStatistics, RolloutPolicy
from envtorch.rollout.group_scoring import scored
from envtorch.rollout.lost_attempts import Lost, pause
from envtorch.rollout.play_options import PlayOptions
from envtorch.rollout.rollout_orders import GroupOrder, RolloutOrder, TreeOrder
from envtorch.rollout.rollout_trees import RolloutTree, TreeGrower
from envtorch.rollout.seats import Seats
from envtorch.rollout.trajectories import Ending, Task, Trajectory, TrajectoryGroup
from envtorch.rollout.transcripts import Transcript
from envtorch.rollout.turn_taking import TurnTaker
from envtorch.types import StepResult

__all__ = ["OrderPlayer"]

T = TypeVar("T")

LINGER_S = 0.005
"""How long a call of a local model waits at least for rollouts that are in a step."""


class OrderPlayer:
    """Plays orders with one policy, many at a time."""

    def __init__(self, policy: RolloutPolicy, options: PlayOptions) -> None:
        self._options = options
        self._costs = SharingCosts(options.share)
        self._seats = Seats(options.concurrency)
        calls = options.policy_calls
        linger_s = LINGER_S if calls == 1 else 0.0
        self._batcher = Batcher(policy, calls=calls, size=options.batch_size, linger_s=linger_s)
        self._turns = TurnTaker(
            self._batcher,
            options.faults,
            max_turns=options.max_turns,
            step_timeout_s=options.step_timeout_s,
        )
        self._preparing = asyncio.Lock()
        self._is_prepared = False
        self._started = 0

    @property
    def batches(self) -> BatchStatistics:
        return self._batcher.statistics

    @property
    def version(self) -> int:
        return self._batcher.version

    async def park(self) -> None:
        await self._batcher.park()

    def resume(self, version: int | None) -> None:
        self._batcher.resume(version)

    async def close(self) -> None:
        """Cancel the policy's calls that run."""
        await self._batcher.close()

    async def play(self, order: RolloutOrder, places: SessionPlaces, lost: Lost = ()) -> Any:
        """The result of an order, played at these places. `lost` are attempts at it before this one."""
        self._started += 1
        if isinstance(order, TreeOrder):
            return await self._tree(order, self._beginning(order.task, places), lost)
        assert isinstance(order, GroupOrder)
        size = order.size
        has_root = size > 1 and self._costs.uses_fork(order.task.options)
        room = min(size + has_root, self._options.concurrency)
        beginning = self._beginning(order.task, places, size, room)
        async with self._seats.take(room):
            return await self._group(order, beginning, room, lost)

    def _beginning(self, task: Task, places: SessionPlaces, size: int = 1, room: int = 1) -> Beginning:
        return Beginning(
            task,
            places,
            partial(self._transcribe, task),
            self._costs,
            number=self._started,
            size=size,
            room=room,
            timeout_s=self._options.reset_timeout_s,
        )

    # A group, and its members.

    async def _group(self, order: GroupOrder, beginning: Beginning, room: int, lost: Lost) -> TrajectoryGroup:
        """A group, with at most `room` sessions at once: members that find none wait for their turn."""
        task, size = order.task, order.size
        opened: list[RolloutClient] = []
        kept: dict[int, RolloutClient] = {}
        lost_at: list[str] = []
        try:
            with self._batcher.joined(size) as leave:
                opened, lost, failed = await self._open(beginning, lost, lost_at)
                if failed is not None:
                    return order.given_up(lost, failed[1], failed[0])
                turns = asyncio.Semaphore(room - beginning.has_root)
                group = _Group(task, beginning, lost, tuple(lost_at), kept, leave, turns)
                clients = [*opened, *(None,) * (size - len(opened))]
                members = await _all_of(
                    [self._member(group, place, client) for place, client in enumerate(clients)]
                )
            if self._options.score is not None:
                members = await scored(members, kept, self._options.score)
        finally:
            # Members that never started have left theirs open, and those that are scored.
            await close_quietly(*opened, *kept.values(), beginning)
        return TrajectoryGroup(task, tuple(members))

    async def _tree(self, order: TreeOrder, beginning: Beginning, lost: Lost) -> RolloutTree:
        """A tree, played again from its beginning while the infrastructure loses all of it."""
        lost_at: list[str] = []
        async with self._seats.take(order.seats):
            while True:
                opened, lost, failed = await self._open(beginning, lost, lost_at)
                if failed is not None:
                    return order.given_up(lost, failed[1], failed[0])
                [trunk] = opened
                try:
                    root = await self._grower(order).grow(trunk, beginning.transcript)
                finally:
                    lost_at.append(trunk.base_url)
                    await close_quietly(trunk)
                root.lost = lost
                error = root.lost_with
                if error is None or len(lost) + 1 >= self._options.attempts:
                    return RolloutTree(order.task, root)
                lost = (*lost, error)
                await pause(len(lost))

    def _grower(self, order: TreeOrder) -> TreeGrower:
        return TreeGrower(
            self._turns,
            width=order.width,
            branch_when=order.branch_when,
            max_leaves=order.max_leaves,
            attempts=self._options.attempts,
        )

    async def _open(
        self, beginning: Beginning, lost: Lost, lost_at: list[str]
    ) -> tuple[list[RolloutClient], Lost, tuple[Ending, EnvTorchError] | None]:
        """The first sessions of a group, why attempts at it were lost, and the failure if all were."""
        while True:
            try:
                return await beginning.open(lost_at), lost, None
            except EnvTorchError as error:
                ending = self._turns.ending_of(error, has_acted=False)
                if ending is not Ending.LOST or len(lost) + 1 >= self._options.attempts:
                    return [], lost, (ending, error)
                lost = (*lost, error)
            await pause(len(lost))

    async def _member(self, group: "_Group", place: int, client: RolloutClient | None) -> Trajectory:
        """One rollout, played again from the group's beginning while the infrastructure loses it.

        The session of one that is to be scored is kept.
        """
        lost, lost_at = group.lost, [*group.lost_at]
        while True:
            async with group.turns:
                played = await self._attempt(group, place, client, lost, lost_at)
            if self._is_over(played, lost):
                return played
            assert isinstance(played.blame, EnvTorchError)
            lost, client = (*lost, played.blame), None
            await pause(len(lost))

    async def _attempt(
        self, group: "_Group", place: int, client: RolloutClient | None, lost: Lost, lost_at: list[str]
    ) -> Trajectory:
        """One attempt at a member, on this session or another one, which is closed or kept."""
        try:
            try:
                client = client or await group.beginning.copy(lost_at)
                played = await self._play(client, group.beginning.transcript, place, lost)
                if self._options.score is not None and played.ending.is_scored:
                    group.kept[place], client = client, None
            except EnvTorchError as error:  # there is no session to play on
                ending = self._turns.ending_of(error, has_acted=False)
                played = Trajectory(group.task, place, ending, blame=error, lost=lost)
            if self._is_over(played, lost):
                group.leave()
            return played
        finally:
            if client is not None:
                lost_at.append(client.base_url)
                await close_quietly(client)

    def _is_over(self, played: Trajectory, lost: Lost) -> bool:
        """Whether this attempt was the last."""
        return played.ending is not Ending.LOST or len(lost) + 1 >= self._options.attempts

    async def _play(self, client: RolloutClient, talk: Transcript, place: int, lost: Lost) -> Trajectory:
        """One attempt, from the beginning to an ending."""
        over = await self._turns.play(client, talk)
        assert over is not None
        return talk.end(over.ending, place, lost, over.blame)

    async def _transcribe(self, task: Task, client: RolloutClient, result: StepResult[Any]) -> Transcript:
        async with self._preparing:
            if not self._is_prepared:
                await self._options.format.prepare(client)
                self._is_prepared = True
        return Transcript.begin(task, self._options.format, self._options.template, result)


@dataclass(frozen=True, slots=True)
class _Group:
    """What the members of a group share."""

    task: Task
    beginning: Beginning
    lost: Lost
    """Why attempts at its beginning were lost."""
    lost_at: tuple[str, ...]
    """The addresses of these attempts."""
    kept: dict[int, RolloutClient]
    """The sessions that are to be scored, by the place of their member."""
    leave: Callable[[], None]
    """Called by a member that asks the policy for nothing more."""
    turns: asyncio.Semaphore
    """Held by a member that has a session, or is opening one."""


async def _all_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; the first error of any, once the others have been cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
