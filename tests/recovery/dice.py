"""An environment whose episodes can be compared: rolls of a seeded die, and a log of every step that ran."""

import os
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any

from envtorch import Action, EnvClient, Environment, Observation, State, create_app
from envtorch.batch_actions import Actions

LOG = "DICE_LOG"
"""The environment variable with the file that steps are written to."""
WILD_STEP = "DICE_WILD_STEP"
"""The environment variable with the number of the step that a server answers with its own process id."""
SHARED = "DICE_SHARED"
"""The environment variable with a file outside of all sessions, which every step makes longer."""
ROOM = "DICE_ROOM"
"""The environment variable with the number of sessions that `small` has room for."""
STEP_S = "DICE_STEP_S"
"""The environment variable with the seconds that a step takes."""


class Roll(Action):
    sides: int = 6


class Rolled(Observation):
    rolls: list[int] = []
    whose: int = 0


class Dice(Environment[Roll, Rolled, State]):
    """Rolls dice from the episode's seed. Each step is a line in the log: the session, episode and number."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    BLOCKING = False
    DETERMINISTIC = True

    def __init__(self) -> None:
        super().__init__()
        self._name = secrets.token_hex(8)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Rolled:
        self._random = random.Random(seed)
        self._rolls: list[int] = []
        self._state = State(episode_id=episode_id)
        return Rolled()

    def step(self, action: Roll) -> Rolled:
        time.sleep(float(os.environ.get(STEP_S, "0")))
        self._state.step_count += 1
        self._rolls.append(self._random.randint(1, action.sides))
        if LOG in os.environ:
            log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:  # one write of one line: whole, whenever this process is killed
                line = f"{self._name} {self._state.episode_id} {self._state.step_count}\n"
                os.write(log, line.encode())
            finally:
                os.close(log)
        if SHARED in os.environ:
            with open(os.environ[SHARED], "a") as shared:
                shared.write(".")
                return Rolled(rolls=list(self._rolls), whose=shared.tell())
        is_wild = str(self._state.step_count) == os.environ.get(WILD_STEP)
        return Rolled(rolls=list(self._rolls), whose=os.getpid() if is_wild else 0)

    @property
    def state(self) -> State:
        return self._state


class Unrepeatable(Dice):
    DETERMINISTIC = False


class Seedless(Dice):
    """Always rolls the same."""

    def reset(self) -> Rolled:  # type: ignore[override]
        return super().reset(seed=1)


class DiceTogether(Dice):
    """Dice that are rolled together, and answered in columns."""

    @classmethod
    def step_many(cls, environments: Sequence["DiceTogether"], actions: Actions[Roll]) -> dict[str, Any]:
        import numpy  # which the image that the cluster's tests make of this file does not have

        rolled = [one.step(action) for one, action in zip(environments, actions, strict=True)]
        return {
            "rolls": [one.rolls for one in rolled],
            "whose": numpy.array([one.whose for one in rolled]),
        }


class DiceEnv(EnvClient[Roll, Rolled, State]): ...


app = create_app(Dice, sessions=4000)
small = create_app(Dice, sessions=int(os.environ.get(ROOM, "1")))
together = create_app(DiceTogether, sessions=4000)
seedless = create_app(Seedless, sessions=10)
unrepeatable = create_app(Unrepeatable, sessions=10)


def rolls_of(seed: int, steps: int) -> list[int]:
    """What an episode with this seed has rolled after so many steps."""
    dice = random.Random(seed)
    return [dice.randint(1, 6) for _ in range(steps)]
