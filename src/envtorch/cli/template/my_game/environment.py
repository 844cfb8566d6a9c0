"""The environment itself: `reset` begins an episode, `step` takes an action, `state` tells how it stands."""

import random
from uuid import uuid4

from envtorch import Environment

from my_game.models import HIGHEST, Hint, MyGameAction, MyGameObservation, MyGameState

__all__ = ["MyGameEnvironment"]

GUESSES = 8


class MyGameEnvironment(Environment[MyGameAction, MyGameObservation, MyGameState]):
    """Guess a secret number. Replace this with your own rules.

    Everything random comes from the seed, so that an episode can be played again.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = MyGameState()

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> MyGameObservation:
        secret = random.Random(seed).randint(1, HIGHEST)
        self._state = MyGameState(episode_id=episode_id or str(uuid4()), secret=secret)
        return MyGameObservation(message=f"Guess a number from 1 to {HIGHEST}.", guesses_left=GUESSES)

    def step(self, action: MyGameAction) -> MyGameObservation:
        self._state.step_count += 1
        left = max(GUESSES - self._state.step_count, 0)
        if action.guess == self._state.secret:
            return MyGameObservation(message="Right!", hint="right", guesses_left=left, reward=1.0, done=True)
        hint: Hint = "higher" if action.guess < self._state.secret else "lower"
        return MyGameObservation(
            message=f"The number is {hint}.", hint=hint, guesses_left=left, reward=0.0, done=left == 0
        )

    @property
    def state(self) -> MyGameState:
        return self._state
