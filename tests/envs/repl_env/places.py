"""Where a REPL can be played, and in which colour: one interface for the tests over all of them."""

import asyncio
from typing import Any, Protocol, Self, cast

from envtorch.envs.repl_env import AsyncREPLEnv, REPLAction, REPLEnv, REPLObservation, REPLState
from envtorch.envs.repl_env.environment import REPLEnvironment
from envtorch.sandbox import Policy
from envtorch.settings import REPLSettings
from envtorch.types import StepResult

MEGABYTE = 1024 * 1024
SMALL = Policy(
    memory_bytes=256 * MEGABYTE,
    disk_bytes=16 * MEGABYTE,
    processes=32,
    timeout_s=20.0,
    grace_s=0.5,
    output_bytes=64 * 1024,
    preload=("random",),
)
PLACES = ("local", "remote", "isolated")
COLOURS = ("blocking", "async")

Result = StepResult[REPLObservation]


def shout(prompt: str) -> str:
    """A language model that only ever repeats itself, louder."""
    if "fail" in prompt:
        raise RuntimeError("the model is indisposed")
    return prompt.upper()


def make_environment() -> REPLEnvironment:
    """The same environment wherever it is made."""
    return REPLEnvironment(llm_query_fn=shout, policy=SMALL, settings=REPLSettings())


class Session(Protocol):
    """What `REPLEnv` and its async twin have in common, once the twin is awaited."""

    def reset(self, **options: Any) -> Result: ...
    def step(self, action: REPLAction, *, timeout_s: float | None = None) -> Result: ...
    def execute(self, code: str, *, timeout_s: float | None = None) -> Result: ...
    def submit_final_answer(self, answer: str) -> Result: ...
    def get_variable(self, name: str) -> Result: ...
    def list_variables(self) -> list[str]: ...
    def state(self) -> REPLState: ...
    def fork(self, n: int = 1) -> "list[Any]": ...
    def close(self) -> None: ...


class Awaited:
    """The async client, with every call awaited on a loop of its own."""

    def __init__(self, client: AsyncREPLEnv, runner: asyncio.Runner | None = None) -> None:
        self._client = client
        self._is_owner = runner is None
        self._runner = runner or asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **options: Any) -> Any:
            return self._runner.run(method(*args, **options))

        return call

    def fork(self, n: int = 1) -> list["Awaited"]:
        return [Awaited(copy, self._runner) for copy in self._runner.run(self._client.fork(n))]

    def close(self) -> None:
        self._runner.run(self._client.close())
        if self._is_owner:
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_session(place: str, colour: str, url: str | None, **rules: Any) -> Session:
    """A client of that colour, of an environment at that place."""
    blocking = colour == "blocking"
    if place == "local":
        client = REPLEnv.local(make_environment) if blocking else AsyncREPLEnv.local(make_environment)
        client._rules = rules
    else:
        patience: dict[str, Any] = {"connect_timeout_s": 60.0, "message_timeout_s": 100.0}
        client = REPLEnv(url, **patience, **rules) if blocking else AsyncREPLEnv(url, **patience, **rules)
    session: Any = client if isinstance(client, REPLEnv) else Awaited(client)
    return cast("Session", session)
