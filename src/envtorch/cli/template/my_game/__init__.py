"""My game: an environment for EnvTorch."""

from my_game.client import MyGameEnv
from my_game.models import MyGameAction, MyGameObservation, MyGameState

__all__ = ["MyGameAction", "MyGameEnv", "MyGameObservation", "MyGameState"]
