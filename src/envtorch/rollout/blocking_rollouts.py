"""Rollouts for scripts and notebooks that await nothing."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from envtorch.client import EnvClient
from envtorch.errors import ClientClosed
from envtorch.rollout.completions import Completion, Prompt
from envtorch.rollout.play_options import refuse_no_callable
from envtorch.rollout.record_settings import policy_settings
from envtorch.rollout.rollout_trees import RolloutTree
from envtorch.rollout.rollouts import GivenTask, Rollouts
from envtorch.rollout.session_places import RolloutServers
from envtorch.rollout.trajectories import Trajectory, TrajectoryGroup
from envtorch.rollout.trajectory_files import TrajectoryFile
from envtorch.rollout.transcripts import Transcript

__all__ = ["BlockingRollouts"]

T = TypeVar("T")
POLICY_ADVICE = "a function from prompts to as many completions"


class BlockingRollouts:
    """`Rollouts`, method for method, with a policy that blocks.

        with BlockingRollouts(CodingEnv, "http://127.0.0.1:8000", generate) as rollouts:
            for group in rollouts.groups(tasks, size=8):
                ...

    Episodes are played on an event loop of their own, in a thread of its own, so it can be used where another
    loop runs, as in a notebook. The policy is called in worker threads, one call at a time unless
    `policy_calls` says otherwise. Episodes go on while you look at a group.
    """

    def __init__(
        self,
        client: type[EnvClient[Any, Any, Any]],
        where: RolloutServers,
        policy: Callable[[Sequence[Prompt]], Sequence[Completion]],
        **options: Any,
    ) -> None:
        """`options` are those of `Rollouts`."""
        refuse_no_callable("policy", policy, POLICY_ADVICE)
        self._rollouts = Rollouts(client, where, _InThread(policy), **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="envtorch-rollouts", daemon=True)
        self._thread.start()

    @staticmethod
    def refuse_wrong(
        client: type[EnvClient[Any, Any, Any]],
        where: RolloutServers,
        policy: Callable[[Sequence[Prompt]], Sequence[Completion]],
        **options: Any,
    ) -> None:
        """Raise `ConfigurationError` for what these rollouts could not be made with; nothing is started."""
        refuse_no_callable("policy", policy, POLICY_ADVICE)
        Rollouts(client, where, _InThread(policy), **{**options, "on": None})

    def run(self, task: GivenTask) -> Trajectory:
        """Play one episode."""
        return self._wait(self._rollouts.run(task))

    def tree(
        self,
        task: GivenTask,
        *,
        width: int = 2,
        branch_when: Callable[[Transcript], bool],
        max_leaves: int = 16,
    ) -> RolloutTree:
        """Play a task as a tree; see `Rollouts.tree`."""
        growing = self._rollouts.tree(task, width=width, branch_when=branch_when, max_leaves=max_leaves)
        return self._wait(growing)

    def groups(
        self, tasks: Iterable[GivenTask], *, size: int = 8, record: TrajectoryFile | None = None
    ) -> Iterator[TrajectoryGroup]:
        """Play each task `size` times from the same beginning; groups as they finish."""
        return self._each(self._rollouts.groups(tasks, size=size, record=record))

    def _each(self, playing: AsyncGenerator[TrajectoryGroup, None]) -> Iterator[TrajectoryGroup]:
        try:
            while (group := self._wait(anext(playing, None))) is not None:
                yield group
        finally:
            if not self._loop.is_closed():
                self._wait(playing.aclose())

    def park(self) -> None:
        """Hold the policy's calls back; see `Rollouts.park`."""
        self._wait(self._rollouts.park())

    def resume(self, version: int | None = None) -> None:
        """Go on, with these weights; see `Rollouts.resume`."""

        async def go_on() -> None:
            self._rollouts.resume(version)

        self._wait(go_on())

    def close(self) -> None:
        """Cancel what still runs, end its sessions, and end the thread."""
        if self._loop.is_closed():
            return
        try:
            self._wait(self._rollouts.close())
            self._wait(self._loop.shutdown_asyncgens())
            self._wait(self._loop.shutdown_default_executor())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` comes to on the loop. An interrupt, such as Ctrl-C, cancels it there, to its end."""
        if self._loop.is_closed():
            work.close()
            raise ClientClosed("these rollouts are closed")
        begun: list[asyncio.Task[Any]] = []

        async def followed() -> T:
            begun.extend(filter(None, [asyncio.current_task()]))
            return await work

        async def ended() -> None:
            if begun:
                await asyncio.wait(begun)

        future = asyncio.run_coroutine_threadsafe(followed(), self._loop)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                asyncio.run_coroutine_threadsafe(ended(), self._loop).result()
            raise


class _InThread:
    """A policy that blocks, called in a worker thread."""

    def __init__(self, policy: Callable[[Sequence[Prompt]], Sequence[Completion]]) -> None:
        self._policy = policy
        self.record_settings = policy_settings(policy)

    async def __call__(self, prompts: Sequence[Prompt]) -> Sequence[Completion]:
        return await asyncio.to_thread(self._policy, prompts)
