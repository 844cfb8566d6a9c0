"""What travels to and from the REPL environment."""

from pydantic import BaseModel, Field

from envtorch.types import Action, Observation, State

__all__ = ["CodeBlockResult", "REPLAction", "REPLObservation", "REPLState"]


class REPLAction(Action):
    """Python code to run, or the answer itself."""

    code: str = Field(default="", description="Python code; names it defines are there in the next step")
    is_final: bool = Field(default=False, description="End the episode with `final_answer`; no code is run")
    final_answer: str | None = Field(default=None, description="The answer, when `is_final` is set")


class CodeBlockResult(BaseModel):
    """What running one piece of code did."""

    stdout: str = Field(default="", description="What was printed, then the value of the last expression")
    stderr: str = Field(default="", description="What was written there, then the error")
    locals_snapshot: dict[str, str] = Field(default_factory=dict, description="New names, and their repr")
    execution_time: float = Field(default=0.0, description="Seconds the code ran")
    success: bool = True
    exception: str | None = Field(default=None, description="The error's type and message")


class REPLObservation(Observation):
    """What the agent sees after a reset or a step."""

    result: CodeBlockResult = Field(default_factory=CodeBlockResult)
    context_preview: str | None = Field(default=None, description="How the context begins")
    context_length: int = Field(default=0, description="How many characters the context has")
    available_variables: list[str] = Field(default_factory=list, description="Names the agent can use")
    iteration: int = 0
    max_iterations: int = 30


class REPLState(State):
    """Where the episode stands."""

    context: str | None = Field(default=None, description="The context; of a very long one, its beginning")
    task_prompt: str | None = None
    iteration: int = 0
    max_iterations: int = 30
    namespace_keys: list[str] = Field(default_factory=list, description="Names the agent can use")
    final_answer: str | None = None
    total_execution_time: float = 0.0
