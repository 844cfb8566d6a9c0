"""Builds environments within a deadline, and keeps count of constructors that do not return."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from envtorch.errors import EnvTorchError, FactoryFailed
from envtorch.protocol.calls import Call
from envtorch.protocol.ledger import CallOutcome
from envtorch.server.runners.runner import Runner
from envtorch.server.sessions.awaited_outcome import outcome_of

__all__ = ["TimedBuilds", "close_unused", "unless_ended"]

logger = logging.getLogger(__name__)

Building = asyncio.Task[Runner]


class TimedBuilds:
    """The environments of one server that are being built.

    A build holds its slot until its constructor has returned or its process was killed, whether anybody still
    waits for it or not.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._closing: set[asyncio.Task[None]] = set()
        self.hanging = 0
        """How many constructors have run past their deadline and cannot be stopped."""

    async def build(
        self,
        work: Coroutine[Any, Any, Runner],
        *,
        limit_s: float,
        is_killable: bool,
        release: Callable[[], None],
    ) -> Runner:
        """The runner that `work` returns. Raises `FactoryFailed` when it takes longer than `limit_s`.

        `release` is called when no runner was returned here, once the constructor is out of the way.
        """
        loop = asyncio.get_running_loop()
        building = loop.create_task(work)
        is_overdue: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(limit_s, self._run_over, building, is_overdue, is_killable)
        building.add_done_callback(partial(_built, is_overdue, timer))
        try:
            await is_overdue
        except asyncio.CancelledError:
            if is_killable:
                building.cancel()
            building.add_done_callback(partial(self._built_for_nobody, release))
            raise
        if not is_overdue.result():
            try:
                return building.result()
            except BaseException:
                release()
                raise
        building.add_done_callback(partial(self._built_for_nobody, release))
        raise FactoryFailed(
            f"Environment factory '{self._name}' failed to create instance.",
            factory_name=self._name,
            reason=f"its constructor did not return within {limit_s:g} s",
        )

    def _run_over(self, building: Building, is_overdue: "asyncio.Future[bool]", is_killable: bool) -> None:
        if building.done():
            return
        if not is_overdue.done():  # it is cancelled where nobody waits any more
            is_overdue.set_result(True)
        if is_killable:
            logger.warning("the constructor of %s ran past its deadline and is killed", self._name)
            building.cancel()
            return
        self.hanging += 1
        building.add_done_callback(self._returned)
        logger.error(
            "a session is stuck: the constructor of %s does not return, and its slot stays taken; "
            "isolation='process' makes it killable",
            self._name,
        )

    def _returned(self, building: Building) -> None:
        self.hanging -= 1

    def _built_for_nobody(self, release: Callable[[], None], building: Building) -> None:
        release()
        if not building.cancelled() and building.exception() is None:
            self.discard(building.result())

    def discard(self, runner: Runner) -> None:
        """Close an environment that nobody waits for any more."""
        task = asyncio.get_running_loop().create_task(close_unused(runner))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _built(is_overdue: "asyncio.Future[bool]", timer: asyncio.TimerHandle, building: Building) -> None:
    timer.cancel()
    if not is_overdue.done():
        is_overdue.set_result(False)


async def answer_of(runner: Runner, call: Call) -> Any:
    """What an environment answers that belongs to no session."""
    outcome = CallOutcome(call)
    runner.start(call, outcome.settle)
    return await outcome_of(outcome)


async def close_unused(runner: Runner) -> None:
    """Close an environment that belongs to no session."""
    try:
        await answer_of(runner, Call("close"))
    except EnvTorchError as error:
        logger.warning("an environment that no session uses did not close: %s", error)
    await runner.close()


async def unless_ended(spare: Runner | None) -> Runner | None:
    """An environment that waits for a session; None, and closed, when its process has ended meanwhile."""
    if spare is None or spare.ended is None:
        return spare
    logger.warning("an environment that no session uses is replaced: %s", spare.ended)
    await spare.close()
    return None
