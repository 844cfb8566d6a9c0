"""A policy and an environment in, trajectories out."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from envtorch.client import EnvClient
from envtorch.client.client_options import Recovery
from envtorch.errors import ConfigurationError
from envtorch.protocol.arguments import shown
from envtorch.rollout.beginnings import Sharing
from envtorch.rollout.blame import Faults
from envtorch.rollout.chat_formats import ChatFormat, default_format
from envtorch.rollout.chat_templates import ChatTemplate
from envtorch.rollout.completions import BatchStatistics, RolloutPolicy
from envtorch.rollout.driver_places import driver_places_of
from envtorch.rollout.group_scoring import GroupScorer
from envtorch.rollout.order_player import OrderPlayer
from envtorch.rollout.play_options import (
    PlayOptions,
    refuse_no_callable,
    refuse_no_client,
    refuse_no_count,
)
from envtorch.rollout.record_settings import settings_of
from envtorch.rollout.rollout_drivers import OnWorkers, RolloutDrivers
from envtorch.rollout.rollout_orders import GroupOrder, RolloutOrder, TreeOrder
from envtorch.rollout.rollout_trees import RolloutTree
from envtorch.rollout.session_places import RolloutServers, places_of
from envtorch.rollout.trajectories import Task, Trajectory, TrajectoryGroup
from envtorch.rollout.trajectory_files import TrajectoryFile
from envtorch.rollout.transcripts import Transcript
from envtorch.tasks import TaskEntry

__all__ = ["Rollouts"]

T = TypeVar("T")
GivenTask = Task | TaskEntry[Any] | Mapping[str, Any] | int


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
        on: OnWorkers | None = None,
    ) -> None:
        """Every option has a default that suits a local model and one server.

        where: the server's address, a provider whose server runs, or several of these; a lost attempt is
            played again on another one. Or an open `AsyncEnvPool`: then its own clients are used.
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
        on: `"ray"` plays in drivers on the nodes of a Ray cluster, one beside each server; a `RayWorkers`
            says what they need. `concurrency` is that of all drivers together. The policy, and what else
            you give here, is sent there by pickling. A driver that dies is an attempt that was lost.

        Raises `ConfigurationError` for an option that cannot be, before anything is played.
        """
        refuse_no_client(client)
        refuse_no_callable("policy", policy, "an async function from prompts to as many completions")
        places = places_of(where, client, {"wait_s": 60.0, **(client_options or {})}, recover)
        self._concurrency = concurrency
        self._is_scored = score is not None
        options = PlayOptions(
            format=format if format is not None else default_format(client),
            template=template,
            concurrency=concurrency,
            max_turns=max_turns,
            attempts=attempts,
            policy_calls=getattr(policy, "calls", 1) if policy_calls is None else policy_calls,
            batch_size=batch_size,
            step_timeout_s=step_timeout_s,
            reset_timeout_s=reset_timeout_s,
            faults={} if faults is None else faults,
            share=share,
            score=score,
        )
        self._settings = settings_of(client, policy, options)
        self._player: OrderPlayer | RolloutDrivers
        self._play: Callable[[RolloutOrder], Coroutine[Any, Any, Any]]
        if on is None:
            self._player = player = OrderPlayer(policy, options)
            self._play = partial(player.play, places=places)
        else:
            self._player = drivers = RolloutDrivers(on, driver_places_of(places), policy, options)
            self._play = drivers.play
        self._running: set[asyncio.Task[Any]] = set()
        self._records: set[ExitStack] = set()
        """Files that are recorded to: released here too, because a traceback may keep a generator alive."""

    @property
    def batches(self) -> BatchStatistics:
        """How full the policy's batches were."""
        return self._player.batches

    async def run(self, task: GivenTask) -> Trajectory:
        """Play one episode."""
        group: TrajectoryGroup = await self._start(self._play(GroupOrder(Task.of(task), 1)))
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
        there may be more leaves. Raises `Unsupported` when the environment cannot be copied, and
        `ConfigurationError` when `max_leaves` is less than `width`, as such a tree could never branch, or
        when it may have more sessions open than `concurrency`: its leaves, and one for each fork.
        """
        refuse_no_count("width", width)
        refuse_no_count("max_leaves", max_leaves)
        refuse_no_callable("branch_when", branch_when, "a function from a Transcript to True or False")
        if width < 2 or max_leaves < width:
            raise ConfigurationError(
                f"a tree of width {width} with at most {max_leaves} leaves never branches: width is 2 or "
                "more, and max_leaves at least the width"
            )
        order = TreeOrder(Task.of(task), width, branch_when, max_leaves)
        if order.seats > self._concurrency:
            raise ConfigurationError(
                f"a tree of width {width} with {max_leaves} leaves has up to {order.seats} sessions open at "
                f"once, and concurrency is {self._concurrency}: give Rollouts concurrency={order.seats} or "
                "more, or tree a smaller max_leaves"
            )
        tree: RolloutTree = await self._start(self._play(order))
        return tree

    def groups(
        self, tasks: Iterable[GivenTask], *, size: int = 8, record: TrajectoryFile | None = None
    ) -> AsyncGenerator[TrajectoryGroup, None]:
        """Play each task `size` times from the same beginning; groups as they finish.

        Tasks are taken as there is room for them, so `tasks` may be endless. The members of a group that is
        larger than `concurrency` are played in turns. With `record`, each group is
        written to the file before it is given out, and tasks that are in the file already are left out, as
        often as they are there. Raises `ConfigurationError` when the file was recorded with other settings,
        and when a group that is to be scored is larger than `concurrency`: its sessions stay open.
        """
        refuse_no_count("size", size)
        if self._is_scored and size > self._concurrency:
            raise ConfigurationError(
                f"the sessions of a group are open until it is scored: size is {size}, and concurrency is "
                f"{self._concurrency}. Give Rollouts concurrency={size} or more, or no score"
            )
        if record is not None and not isinstance(record, TrajectoryFile):
            raise ConfigurationError(
                f"record is {shown(record)}: give TrajectoryFile(path), which also reads what was recorded"
            )
        if not isinstance(tasks, Iterable):
            raise TypeError(
                f"tasks is {type(tasks).__name__}: give a list or an ordinary generator of tasks, as range(8)"
            )
        return self._recorded((Task.of(task) for task in tasks), size, record)

    async def _recorded(
        self, wanted: Iterable[Task], size: int, record: TrajectoryFile | None
    ) -> AsyncGenerator[TrajectoryGroup, None]:
        if record is None:
            async for group in self._groups(wanted, size):
                yield group
            return
        with ExitStack() as held:
            held.enter_context(record.recording({**self._settings, "size": size}))
            self._records.add(held)
            held.callback(self._records.discard, held)
            async for group in self._groups(record.unplayed(wanted), size):
                await asyncio.to_thread(record.add, group)
                yield group

    async def _groups(self, tasks: Iterable[Task], size: int) -> AsyncIterator[TrajectoryGroup]:
        ahead = max(1, -(-self._concurrency // size))
        waiting: set[asyncio.Task[TrajectoryGroup]] = set()
        try:
            for task in tasks:
                waiting.add(self._start(self._play(GroupOrder(task, size))))
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
        return self._player.version

    async def park(self) -> None:
        """Hold the policy's calls back until `resume`, and wait for those that run.

        Sessions stay open and steps that run are finished: the weights can be replaced in mid-episode.
        """
        await self._player.park()

    def resume(self, version: int | None = None) -> None:
        """Go on where `park` stopped. Tokens said from now on have this `version`."""
        self._player.resume(version)

    async def close(self) -> None:
        """Cancel what still runs, and end its sessions."""
        await _cancel(self._running)
        for held in list(self._records):
            held.close()
        await self._player.close()

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


async def _cancel(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
