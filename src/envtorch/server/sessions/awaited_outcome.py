"""Waiting for what comes of a call, and settling one with what a coroutine comes to."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from envtorch.protocol.host import failure_of
from envtorch.protocol.ledger import CallOutcome, Ledger

__all__ = ["outcome_of", "settle_with"]


async def outcome_of(outcome: CallOutcome) -> Any:
    """The result of a call. Raises its error. Giving up on the wait does not take the call back."""
    if not outcome.is_settled:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcome.then(lambda _: None if settled.done() else settled.set_result(None))
        await settled
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


def settle_with(work: Coroutine[Any, Any, Any], outcome: CallOutcome, ledger: Ledger) -> None:
    """Run `work`, and settle the outcome with its result or error. If it is settled before, `work` ends."""
    task = asyncio.get_running_loop().create_task(_settle(work, outcome, ledger))
    outcome.then(partial(_cancel, task))


async def _settle(work: Coroutine[Any, Any, Any], outcome: CallOutcome, ledger: Ledger) -> None:
    try:
        ledger.settle(outcome, await work)
    except Exception as error:
        ledger.settle(outcome, None, failure_of("work", error))


def _cancel(task: "asyncio.Task[None]", outcome: CallOutcome) -> None:
    """Cancel a task after its first step: a coroutine that never began cleans nothing up."""
    task.get_loop().call_soon(task.cancel)
