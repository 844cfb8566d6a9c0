"""What travels to and from the coding environment."""

from typing import Literal

from pydantic import Field

from envtorch.tools import CallToolAction, CallToolObservation
from envtorch.types import Action, Observation, State

__all__ = ["CodeAction", "CodeObservation", "CodeState", "CodeToolObservation", "Ending", "PythonAction"]

Ending = Literal[
    "ok",
    "error",
    "timed out",
    "interrupted",
    "out of memory",
    "out of processes",
    "out of disk",
    "output truncated",
    "crashed",
]
"""How code ended: the values of `envtorch.sandbox.Outcome`, spelt out so that a client loads no sandbox."""


class CodeAction(Action):
    """Python code to run."""

    code: str = Field(description="Python code; names it defines are there in the next step")


class CodeObservation(Observation):
    """What running the code did."""

    stdout: str = ""
    stderr: str = Field(
        default="", description="What was written there, then the error with the agent's frames"
    )
    exit_code: int = Field(
        default=0, description="0 when the code went well; minus the signal that killed it"
    )
    outcome: Ending = Field(default="ok", description="How the code ended, or which limit ended it")
    value: str | None = Field(default=None, description="repr of the last expression, if it had a value")


class CodeToolObservation(CodeObservation, CallToolObservation):
    """What a tool answered. `result` is what a language model is shown; the rest is for programs."""

    tool_name: str = ""


class PythonAction(CallToolAction):
    """Run Python code, as a call of a tool."""

    def __init__(self, code: str) -> None:
        super().__init__(tool_name="python", arguments={"code": code})


class CodeState(State):
    """How many pieces of code this episode has run, and how the last one ended."""

    last_exit_code: int = 0
