"""The check of environments that step together: they must answer as each of them would alone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from envtorch.batch_actions import Actions
from envtorch.protocol.binding import Colour, own_step_many
from envtorch.protocol.columns import rows_of, table_of
from envtorch.protocol.encoding import encode_value
from envtorch.testing.player import CheckedPlayer
from envtorch.testing.report import Finding, NotRun, Severity
from envtorch.testing.subject import Subject

__all__ = ["together"]

WIDTH = 3


def together(subject: Subject) -> Iterator[Finding]:
    """Where `step_many` is written: it gives what `step` gives, to the right environments."""
    with subject.player() as player:
        kind, colour = type(player.environment), player.binding.colour
    if own_step_many(kind) is None:
        if "step_many" in vars(kind):
            yield _warning("step_many is no classmethod, and no server calls it", "put @classmethod above it")
            return
        raise NotRun("there is no step_many")
    if colour is Colour.MIXED or (colour is Colour.SYNC and kind.BLOCKING):
        yield _warning(
            "step_many is called only where environments live on the event loop",
            "set BLOCKING = False if its steps take microseconds, or await; else it does nothing",
        )
    if colour is not Colour.MIXED:
        yield from _compared(subject)


def _compared(subject: Subject) -> Iterator[Finding]:
    with ExitStack() as stack:
        alone, joined = (
            [stack.enter_context(subject.player()) for _ in range(WIDTH)] for _ in ("alone", "joined")
        )
        for players in (alone, joined):
            for number, player in enumerate(players):
                player.reset(subject.reset_options(seed=subject.seed + number))
        for number, given in enumerate(subject.actions, start=1):
            expected = [player.step(subject.codec.decode_action(given)) for player in alone]
            wrong = _told_otherwise(subject, joined, given, [alone[0].told(one, "step") for one in expected])
            if wrong is not None:
                yield Finding("together", f"step_many {wrong} at step {number}", ADVICE)
                return
            alone = [player for player, one in zip(alone, expected, strict=True) if not _is_done(one)]
            joined = [player for player, one in zip(joined, expected, strict=True) if not _is_done(one)]
            if not alone:
                return
            alone.reverse()  # an answer that goes by the order of the first call is found out
            joined.reverse()
        if [encode_value(one.state()) for one in alone] != [encode_value(one.state()) for one in joined]:
            yield Finding("together", "after step_many the state differs from that after step", ADVICE)


ADVICE = "let both use the same arithmetic, and answer environments in the order they are given"


def _told_otherwise(
    subject: Subject, players: Sequence[CheckedPlayer], given: Mapping[str, Any], expected: list[bytes]
) -> str | None:
    """How `step_many` answers otherwise than `step`; None when it does not."""
    kind = type(players[0].environment)
    actions = Actions.of([subject.codec.decode_action(given) for _ in players])
    answer = kind.step_many([player.environment for player in players], actions)
    try:
        observations = _observations(subject, answer, len(players))
    except ValueError as error:
        return f"gives what cannot be used ({error})"
    told = [players[0].told(one, "step_many") for one in observations]
    return None if told == expected else "answers otherwise than step"


def _observations(subject: Subject, answer: Any, count: int) -> Sequence[Any]:
    observation = subject.codec.spec.observation
    if isinstance(answer, Mapping):
        table = table_of(observation)
        if table is None:
            raise ValueError(f"{observation.__name__} has a way of its own, and cannot be given as columns")
        return [observation(**row) for row in rows_of(table.checked(answer, count))]
    if not isinstance(answer, Sequence) or len(answer) != count:
        raise ValueError(f"it has to be {count} observations, or their columns")
    return answer


def _is_done(observation: Any) -> bool:
    return bool(getattr(observation, "done", False))


def _warning(message: str, advice: str) -> Finding:
    return Finding("together", message, advice, Severity.WARNING)
