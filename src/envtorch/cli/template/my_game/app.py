"""The environment, served: `envtorch serve .` finds this."""

from envtorch import create_app

from my_game.environment import MyGameEnvironment

app = create_app(MyGameEnvironment, name="my_game", sessions=64)
