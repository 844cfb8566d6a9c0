"""What travels between an agent and the environment."""

from typing import Literal

from envtorch import Action, Observation, State
from pydantic import Field

__all__ = ["HIGHEST", "Hint", "MyGameAction", "MyGameObservation", "MyGameState"]

HIGHEST = 100

Hint = Literal["higher", "lower", "right"]


class MyGameAction(Action):
    """What an agent does: it guesses a number."""

    guess: int = Field(ge=1, le=HIGHEST, description="The number that it might be")


class MyGameObservation(Observation):
    """What an agent sees."""

    message: str = ""
    hint: Hint | None = None
    guesses_left: int = 0


class MyGameState(State):
    """What has happened in an episode. The server shows it to whoever plays: keep answers out of it."""

    guesses: list[int] = Field(default_factory=list)
