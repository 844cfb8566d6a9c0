"""The environment: `reset` begins an episode, `step` takes an action, `state` tells what has happened."""

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
        self._secret = 0  # not in the state: `GET /state` shows that to whoever plays

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> MyGameObservation:
        self._secret = random.Random(seed).randint(1, HIGHEST)
        self._state = MyGameState(episode_id=episode_id or str(uuid4()))
        return MyGameObservation(message=f"Guess a number from 1 to {HIGHEST}.", guesses_left=GUESSES)

    def step(self, action: MyGameAction) -> MyGameObservation:
        self._state.step_count += 1
        self._state.guesses.append(action.guess)
        left = max(GUESSES - self._state.step_count, 0)
        if action.guess == self._secret:
            return MyGameObservation(message="Right!", hint="right", guesses_left=left, reward=1.0, done=True)
        hint: Hint = "higher" if action.guess < self._secret else "lower"
        return MyGameObservation(
            message=f"The number is {hint}.", hint=hint, guesses_left=left, reward=0.0, done=left == 0
        )

    @property
    def state(self) -> MyGameState:
        return self._state
