"""The client: `MyGameEnv(url)` plays on a server, `MyGameEnv.local()` in this process."""

from envtorch import EnvClient

from my_game.models import MyGameAction, MyGameObservation, MyGameState

__all__ = ["MyGameEnv"]


class MyGameEnv(
    EnvClient[MyGameAction, MyGameObservation, MyGameState],
    environment="my_game.environment:MyGameEnvironment",
):
    """A session with My game."""
