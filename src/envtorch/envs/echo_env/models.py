"""What travels to and from the echo environment."""

from envtorch.types import Action, Observation, State

__all__ = ["EchoAction", "EchoObservation", "EchoState"]


class EchoAction(Action):
    """A message to be said back."""

    message: str


class EchoObservation(Observation):
    """The message, said back."""

    echoed_message: str = ""
    message_length: int = 0


class EchoState(State):
    """How many messages this episode has seen."""
