"""A fork on its way: slots are taken for the copies, then they are made, and each becomes a session."""

from collections.abc import Callable, Sequence

from envtorch.errors import Cancelled, EnvTorchError
from envtorch.protocol.ledger import CallOutcome
from envtorch.server.runners.runner import Runner
from envtorch.server.sessions.awaited_outcome import outcome_of
from envtorch.server.sessions.session import Session
from envtorch.server.sessions.slots import Names, Room

__all__ = ["copies_of"]


async def copies_of(
    session: Session,
    outcome: CallOutcome,
    names: Sequence[Names],
    *,
    slots: Room,
    enter: Callable[[Runner, Names], Session],
    discard: Callable[[Runner], None],
) -> list[Session]:
    """Take a slot for each of `names`, let the call that copies begin, and `enter` each copy.

    `outcome` is that of the call, which is not ready. It keeps its turn in `session` while slots are taken.
    Copies that nobody waits for any more are closed: by `discard` when they come after the call was given up.
    """
    copies: list[Session] = []

    def copied(outcome: CallOutcome) -> None:
        """Before the session's next call begins, so that what is noted of the copies is of this moment."""
        if outcome.error is None:
            copies.extend(map(enter, outcome.result, names))
            return
        for unused in names:
            slots.free(unused)

    def came_too_late(runners: Sequence[Runner]) -> None:
        for runner in runners:
            discard(runner)

    try:
        await slots.take_together(names)
        outcome.too_late = came_too_late
        outcome.then(copied)
        session.make_ready(outcome)
        await outcome_of(outcome)
    except EnvTorchError as error:
        session.give_up(outcome, error)  # of a call that was made, this is nothing
        raise
    except BaseException:
        session.give_up(outcome, Cancelled("nobody waits for the copies"), stop=False)
        for copy in copies:
            await copy.close("nobody waits for it")
        raise
    return copies
