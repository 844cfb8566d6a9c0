"""The names of OpenEnv's first releases take what those releases took; the names of today stay strict."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.alias import environment_files as files
from tests.alias.test_directories import plays
from tests.alias.test_serving import served
from tests.support import PATIENCE_S

MODELS = """
from dataclasses import dataclass
from typing import Any, Dict

from core.env_server import Action, Observation, State

@dataclass
class MyAction(Action):
    command: str
    parameters: Dict[str, Any]

@dataclass
class MyObservation(Observation):
    result: str
    success: bool
"""

ENVIRONMENT = """
import uuid

from core.env_server import Environment, State
from ..models import MyAction, MyObservation

class MyEnvironment(Environment):
    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self) -> MyObservation:
        self._state = State(episode_id=str(uuid.uuid4()))
        return MyObservation(result="Ready", success=True)

    def step(self, action: MyAction) -> MyObservation:
        self._state.step_count += 1
        result = f"Executed: {action.command}"
        return MyObservation(result=result, success=True)

    @property
    def state(self) -> State:
        return self._state
"""

APP = """
from core.env_server import create_fastapi_app
from ..models import MyAction, MyObservation
from .my_environment import MyEnvironment

env = MyEnvironment()
app = create_fastapi_app(env, MyAction, MyObservation)
"""

CLIENT = """
from core.http_env_client import HTTPEnvClient
from core.types import StepResult
from core.env_server import State
from .models import MyAction, MyObservation

class MyEnv(HTTPEnvClient[MyAction, MyObservation]):
    def _step_payload(self, action: MyAction) -> dict:
        return {"command": action.command, "parameters": action.parameters}

    def _parse_result(self, payload: dict) -> StepResult[MyObservation]:
        obs = MyObservation(**payload["observation"])
        return StepResult(
            observation=obs,
            reward=payload.get("reward"),
            done=payload.get("done", False),
        )

    def _parse_state(self, payload: dict) -> State:
        return State(**payload)
"""

PLAY = """
import sys
sys.path.insert(0, sys.argv[2])
import envtorch.compat.openenv
from my_env import MyAction, MyEnv

client = MyEnv(base_url=sys.argv[1])
result = client.reset()
print(result.observation.result)
result = client.step(MyAction(command="greet", parameters={"name": "World"}))
print(result.observation.result, result.observation.success)
print(client.state().step_count)
client.close()
"""


@pytest.fixture
def my_env(tmp_path: Path) -> Path:
    """The first README's example: `models.py`, `client.py` and `server/`, each as it was printed there."""
    directory = tmp_path / "my_env"
    (directory / "server").mkdir(parents=True)
    for name, text in {
        "__init__.py": "from .client import MyEnv\nfrom .models import MyAction, MyObservation\n",
        "models.py": MODELS,
        "client.py": CLIENT,
        "server/__init__.py": "",
        "server/my_environment.py": ENVIRONMENT,
        "server/app.py": APP,
    }.items():
        (directory / name).write_text(text)
    return directory


def test_the_first_readmes_example_runs_as_it_was_printed(my_env: Path) -> None:
    with served(my_env) as url:
        done = subprocess.run(
            [sys.executable, "-c", PLAY, url, str(my_env.parent)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Ready", "Executed: greet True", "1"]


STRICT = """
import envtorch.compat.openenv
import core.env_server, openenv.core.env_server
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.envs.echo_env.models import EchoAction, EchoObservation

core.env_server.create_app(EchoEnvironment(), EchoAction, EchoObservation)
for name in ("create_app", "create_fastapi_app", "HTTPEnvServer"):
    try:
        getattr(openenv.core.env_server, name)(EchoEnvironment(), EchoAction, EchoObservation)
    except TypeError as error:
        print("must be a callable" in str(error))
"""


def test_todays_names_stay_strict_beside_the_early_ones() -> None:
    done = subprocess.run([sys.executable, "-c", STRICT], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True"]


@pytest.mark.parametrize(
    "given",
    [
        "WordEnvironment(), WordAction, WordObservation",
        "WordEnvironment, WordAction, WordObservation, session_timeout=300",
    ],
    ids=["an instance", "session_timeout"],
)
def test_envtorch_serve_takes_what_older_environments_hand_to_create_app(tmp_path: Path, given: str) -> None:
    directory = files.write(tmp_path / "word_env", app=f"{files.APP}\napp = create_app({given})\n")
    assert plays(directory)
