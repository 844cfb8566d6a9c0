"""OpenEnv's interpreter of Python in Python, as the environment that its coding environment is."""

from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.tools import PyExecutor

from bench.servers.environment import Served


class Code(Action):  # type: ignore[misc]
    code: str


class Ran(Observation):  # type: ignore[misc]
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class Coding(Environment):  # type: ignore[misc]
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._executor = PyExecutor()

    def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Ran:
        self._state = State()
        self._executor = PyExecutor()
        return Ran()

    def step(self, action: Code, timeout_s: Any = None, **kwargs: Any) -> Ran:
        self._state.step_count += 1
        result = self._executor.run(action.code)
        return Ran(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    @property
    def state(self) -> State:
        return self._state


served = Served(Coding, Code, Ran)
