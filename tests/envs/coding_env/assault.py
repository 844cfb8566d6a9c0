"""Attacks on a live coding server, one session each, and a session next door that must not notice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from envtorch.envs.coding_env import CodeAction, CodingEnv
from envtorch.errors import EnvironmentFailed
from envtorch.sandbox import Outcome
from tests.sandbox.attacks import Attack, Target, attacks

COUNT = len(attacks(Target(0, "/x", 1, "/x", "x")))
PATIENCE_S = 100.0


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation, as the suite judges it."""

    outcome: Outcome
    stdout: str


@dataclass(frozen=True, slots=True)
class Siege:
    """A live server, what there is to attack, and a session that must not notice."""

    url: str
    target: Target
    neighbour: CodingEnv
    unharmed: Callable[[], bool]
    """Whether the owner's secret is still as it was."""

    def carry_out(self, attack: Attack) -> None:
        """One attack in a session of its own. Raises `AssertionError` unless it is contained."""
        with CodingEnv(self.url, message_timeout_s=PATIENCE_S) as env:
            env.reset()
            result = env.step(CodeAction(code=attack.code))
            seen = result.observation
            what = (attack.name, seen.outcome, seen.stdout[-300:], seen.stderr[-300:])
            assert attack.contained(Seen(Outcome(seen.outcome), seen.stdout)), what
            assert self.target.secret not in f"{seen.stderr}{seen.value}", what
            assert (seen.exit_code == 0) == (seen.outcome in ("ok", "output truncated")), what
            if result.done:  # its interpreter is gone, and it says so; the session begins another episode
                with pytest.raises(EnvironmentFailed, match="call reset"):
                    env.step(CodeAction(code="1"))
                env.reset()
                assert env.step(CodeAction(code="1")).observation.value == "1"
        undisturbed = self.neighbour.step(CodeAction(code="kept")).observation.value
        assert undisturbed == "'undisturbed'", what
        assert self.unharmed(), what


@contextmanager
def laid_to(url: str, target: Target, unharmed: Callable[[], bool]) -> Iterator[Siege]:
    """The siege of the server at `url`."""
    with CodingEnv(url, message_timeout_s=PATIENCE_S) as neighbour:
        neighbour.reset()
        neighbour.step(CodeAction(code="kept = 'undisturbed'"))
        neighbour.step(CodeAction(code=f"open('neighbour.txt', 'w').write({target.secret!r})"))
        yield Siege(url, target, neighbour, unharmed)
