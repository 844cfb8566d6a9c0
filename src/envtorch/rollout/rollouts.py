"""A policy and an environment in, trajectories out."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from envtorch.client import EnvClient
from envtorch.client.client_options import Recovery
from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.rollout.beginnings import Beginning, RolloutClient, Sharing, SharingCosts, close_quietly
from envtorch.rollout.blame import Faults
from envtorch.rollout.chat_formats import ChatFormat, default_format
from envtorch.rollout.chat_templates import ChatTemplate
from envtorch.rollout.completions import Batcher, BatchStatistics, RolloutPolicy
from envtorch.rollout.group_scoring import GroupScorer, scored
from envtorch.rollout.rollout_trees import RolloutTree, TreeGrower, TreeNode
from envtorch.rollout.seats import Seats
from envtorch.rollout.session_places import RolloutServers, places_of
from envtorch.rollout.trajectories import Ending, Task, Trajectory, TrajectoryGroup
from envtorch.rollout.trajectory_files import TrajectoryFile
from envtorch.rollout.transcripts import Transcript
from envtorch.rollout.turn_taking import Over, TurnTaker
from envtorch.tasks import TaskEntry
from envtorch.types import StepResult

__all__ = ["Rollouts"]

T = TypeVar("T")
GivenTask = Task | TaskEntry[Any] | Mapping[str, Any] | int
Lost = tuple[EnvTorchError, ...]

LINGER_S = 0.005
"""How long a call of a local model waits for rollouts that are in a step."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Between attempts that the infrastructure has lost."""


class Rollouts:
    """Plays episodes of one environment with one policy, many at a time.

        async with Rollouts(CodingEnv, "http://127.0.0.1:8000", policy) as rollouts:
            async for group in rollouts.groups(tasks, size=8):      # as they finish
                for trajectory in group:
                    trajectory.messages, trajectory.reward, trajectory.ending

    `policy` is an async callable: it is given a batch of prompts and returns as many completions. With a
    `template` the prompts have token ids, and trajectories have tokens, mask and log-probabilities.
    """

    def __init__(
        self,
        client: type[EnvClient[Any, Any, Any]],
        where: RolloutServers,
        policy: RolloutPolicy,
        *,
        format: ChatFormat | None = None,
        template: ChatTemplate | None = None,
        concurrency: int = 256,
        max_turns: int = 20,
        attempts: int = 3,
        policy_calls: int | None = None,
        batch_size: int = 256,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
        faults: Faults | None = None,
        share: Sharing | None = None,
        score: GroupScorer | None = None,
        client_options: Mapping[str, Any] | None = None,
        recover: Recovery | None = None,
    ) -> None:
        """Every option has a default that suits a local model and one server.

        where: the server's address, a provider whose server runs, or several of these; a lost attempt is
            played again on the next one. Or an open `AsyncEnvPool`: then its own clients are used.
        format: how observations become messages, and completions actions; see `default_format`.
        template: how conversations become token ids; without one the policy works on messages.
        concurrency: the most sessions that are open at once; not more than the servers have room for.
        attempts: how often an episode is played before it is `LOST`.
        policy_calls: how many calls of the policy run at once: its own `calls` if it has such an attribute,
            else 1, so that a local model sees full batches. An endpoint that batches by itself has many.
        batch_size: the most prompts in one call.
        faults: endings by error, where they differ from the usual. `{TimedOut: Ending.LOST}` plays an episode
            whose step timed out again, instead of ending the rollout as the policy's mistake.
        share: how a group shares its beginning: by `"fork"`, or by `"reset"` with the same options. By
            default it is forked, unless the environment cannot be copied, or has a seed and faster resets.
        score: gives the members of a group their scores when all have ended, with their sessions still there;
            in place of the environment's rewards. See `score_each` and `score_by`.
        client_options: of `client.aio`. By default a session waits up to 60 seconds for a slot.
        recover: `"replay"` plays an episode whose server dies again on the next address, and goes on there.
        """
        policy_calls = getattr(policy, "calls", 1) if policy_calls is None else policy_calls
        if min(concurrency, max_turns, attempts, policy_calls, batch_size) < 1:
            raise ConfigurationError(
                "concurrency, max_turns, attempts, policy_calls and batch_size are at least 1"
            )
        self._places = places_of(where, client, {"wait_s": 60.0, **(client_options or {})}, recover)
        self._format = format if format is not None else default_format(client)
        self._template = template
        self._concurrency = concurrency
        self._attempts = attempts
        self._reset_timeout_s = reset_timeout_s
        self._score = score
        self._costs = SharingCosts(share)
        self._seats = Seats(concurrency)
        linger_s = LINGER_S if policy_calls == 1 else 0.0
        self._batcher = Batcher(policy, calls=policy_calls, size=batch_size, linger_s=linger_s)
        self._turns = TurnTaker(
            self._batcher, faults or {}, max_turns=max_turns, step_timeout_s=step_timeout_s
        )
        self._preparing = asyncio.Lock()
        self._is_prepared = False
        self._started = 0
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def batches(self) -> BatchStatistics:
        """How full the policy's batches were."""
        return self._batcher.statistics

    async def run(self, task: GivenTask) -> Trajectory:
        """Play one episode."""
        group = await self._start(self._group(Task.of(task), 1))
        return group.members[0]

    async def tree(
        self,
        task: GivenTask,
        *,
        width: int = 2,
        branch_when: Callable[[Transcript], bool],
        max_leaves: int = 16,
    ) -> RolloutTree:
        """Play a task as a tree: where `branch_when` holds, the session is forked into `width` branches.

        `branch_when` is asked at the beginning and after every turn, with the conversation so far, while
        there may be more leaves. Raises `Unsupported` when the environment cannot be copied.
        """
        if width < 2 or max_leaves < 1:
            raise ConfigurationError("a tree branches into two or more, and has at least one leaf")
        grower = TreeGrower(
            self._turns, width=width, branch_when=branch_when, max_leaves=max_leaves, attempts=self._attempts
        )
        return await self._start(self._tree(Task.of(task), grower, 2 * max_leaves))

    async def groups(
        self, tasks: Iterable[GivenTask], *, size: int = 8, record: TrajectoryFile | None = None
    ) -> AsyncGenerator[TrajectoryGroup, None]:
        """Play each task `size` times from the same beginning; groups as they finish.

        Tasks are taken as there is room for them, so `tasks` may be endless. With `record`, each group is
        written to the file before it is given out, and tasks that are in the file already are left out.
        """
        if size < 1:
            raise ConfigurationError("a group has at least one member")
        async for group in self._groups((Task.of(task) for task in tasks), size, record):
            if record is not None:
                await asyncio.to_thread(record.add, group)
            yield group

    async def _groups(
        self, tasks: Iterable[Task], size: int, record: TrajectoryFile | None
    ) -> AsyncIterator[TrajectoryGroup]:
        ahead = max(1, -(-self._concurrency // size))
        waiting: set[asyncio.Task[TrajectoryGroup]] = set()
        try:
            for task in tasks:
                if record is not None and task in record:
                    continue
                waiting.add(self._start(self._group(task, size)))
                if len(waiting) >= ahead:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for group in done:
                        yield group.result()
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for group in done:
                    yield group.result()
        finally:
            await _cancel(waiting)

    @property
    def version(self) -> int:
        """The version of the weights that complete prompts now; 0 at first."""
        return self._batcher.version

    async def park(self) -> None:
        """Hold the policy's calls back until `resume`, and wait for those that run.

        Sessions stay open and steps that run are finished: the weights can be replaced in mid-episode.
        """
        await self._batcher.park()

    def resume(self, version: int | None = None) -> None:
        """Go on where `park` stopped. Tokens said from now on have this `version`."""
        self._batcher.resume(version)

    async def close(self) -> None:
        """Cancel what still runs, and end its sessions."""
        await _cancel(self._running)
        await self._batcher.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # one that nobody awaits any more, because another failed first, is not reported

    # A group, and its members.

    async def _group(self, task: Task, size: int) -> TrajectoryGroup:
        beginning = self._beginning(task, size)
        has_root = size > 1 and self._costs.uses_fork(task.options)
        opened: list[RolloutClient] = []
        kept: dict[int, RolloutClient] = {}
        async with self._seats.take(size + has_root):
            try:
                opened, lost, failed = await self._open(beginning)
                if failed is not None:
                    members = [_unplayed(task, place, failed[0], lost, failed[1]) for place in range(size)]
                else:
                    clients = [*opened, *(None,) * (size - len(opened))]
                    playing = [
                        self._member(beginning, task, place, client, lost, kept)
                        for place, client in enumerate(clients)
                    ]
                    members = await _all_of(playing)
                    if self._score is not None:
                        members = await scored(members, kept, self._score)
            finally:
                # Members that never started have left theirs open, and those that are scored.
                await close_quietly(*opened, *kept.values(), beginning)
        return TrajectoryGroup(task, tuple(members))

    def _beginning(self, task: Task, size: int) -> Beginning:
        self._started += 1
        return Beginning(
            task,
            partial(self._places.open, self._started),
            partial(self._transcribe, task),
            self._costs,
            size=size,
            timeout_s=self._reset_timeout_s,
        )

    async def _tree(self, task: Task, grower: TreeGrower, seats: int) -> RolloutTree:
        async with self._seats.take(seats):
            beginning = self._beginning(task, 1)
            opened, lost, failed = await self._open(beginning)
            if failed is not None:
                return RolloutTree(task, TreeNode(None, over=Over(*failed), lost=lost))
            try:
                root = await grower.grow(opened[0], beginning.transcript)
            finally:
                await close_quietly(opened[0])
        root.lost = lost
        return RolloutTree(task, root)

    async def _open(
        self, beginning: Beginning
    ) -> tuple[list[RolloutClient], Lost, tuple[Ending, EnvTorchError] | None]:
        """The first sessions of a group, why attempts at it were lost, and the failure if all were."""
        lost: Lost = ()
        while True:
            try:
                return await beginning.open(), lost, None
            except EnvTorchError as error:
                ending = self._turns.ending_of(error, has_acted=False)
                if ending is not Ending.LOST or len(lost) + 1 >= self._attempts:
                    return [], lost, (ending, error)
                lost = (*lost, error)
            await _pause(len(lost))

    async def _member(
        self,
        beginning: Beginning,
        task: Task,
        place: int,
        client: RolloutClient | None,
        lost: Lost,
        kept: dict[int, RolloutClient],
    ) -> Trajectory:
        """One rollout, played again from the group's beginning while the infrastructure loses it.

        The session of one that is to be scored is kept.
        """
        while True:
            try:
                client = client or await beginning.copy()
                played = await self._play(client, beginning.transcript, place, lost)
                if self._score is not None and played.ending.is_scored:
                    kept[place], client = client, None
            except EnvTorchError as error:  # there is no session to play on
                played = _unplayed(task, place, self._turns.ending_of(error, has_acted=False), lost, error)
            finally:
                if client is not None:
                    await close_quietly(client)
            if played.ending is not Ending.LOST or len(lost) + 1 >= self._attempts:
                return played
            assert isinstance(played.blame, EnvTorchError)
            lost, client = (*lost, played.blame), None
            await _pause(len(lost))

    async def _play(self, client: RolloutClient, talk: Transcript, place: int, lost: Lost) -> Trajectory:
        """One attempt, from the beginning to an ending."""
        over = await self._turns.play(client, talk)
        assert over is not None
        return talk.end(over.ending, place, lost, over.blame)

    async def _transcribe(self, task: Task, client: RolloutClient, result: StepResult[Any]) -> Transcript:
        async with self._preparing:
            if not self._is_prepared:
                await self._format.prepare(client)
                self._is_prepared = True
        return Transcript.begin(task, self._format, self._template, result)


def _unplayed(task: Task, place: int, ending: Ending, lost: Lost, error: EnvTorchError) -> Trajectory:
    return Trajectory(task, place, ending, blame=error, lost=lost)


async def _pause(lost: int) -> None:
    longest = min(FIRST_PAUSE_S * 2**lost, LONGEST_PAUSE_S)
    await asyncio.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311, it only spreads retries


async def _all_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; the first error of any, once the others have been cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _cancel(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
