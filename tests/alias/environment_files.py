"""A small environment in the layout that OpenEnv's template gives, written into a directory."""

from pathlib import Path

MODELS = """
from openenv.core.env_server.types import Action, Observation, State

class WordAction(Action):
    word: str

class WordObservation(Observation):
    words: list[str] = []
"""

ENVIRONMENT = """
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State
try:
    from ..models import WordAction, WordObservation
except ImportError:
    from models import WordAction, WordObservation

class WordEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self._state = State(episode_id="none", step_count=0)
        self._words = []

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state, self._words = State(episode_id=episode_id, step_count=0), []
        return WordObservation(words=[], reward=0.0)

    def step(self, action: WordAction, timeout_s=None, **kwargs):
        self._state.step_count += 1
        self._words.append(action.word)
        return WordObservation(words=list(self._words), reward=1.0)

    @property
    def state(self):
        return self._state
"""

CLIENT = """
from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.types import State
from .models import WordAction, WordObservation

class WordEnv(EnvClient[WordAction, WordObservation, State]):
    def _step_payload(self, action):
        return {"word": action.word}

    def _parse_result(self, payload):
        seen = WordObservation(**payload["observation"], reward=payload["reward"], done=payload["done"])
        return StepResult(observation=seen, reward=payload["reward"], done=payload["done"])

    def _parse_state(self, payload):
        return State(**payload)
"""

APP = """
from openenv.core.env_server import create_app
try:
    from ..models import WordAction, WordObservation
    from .word_environment import WordEnvironment
except ImportError:
    from models import WordAction, WordObservation
    from server.word_environment import WordEnvironment
"""

WITH_APP = (
    APP
    + """
app = create_app(
    WordEnvironment, WordAction, WordObservation, env_name="word_env", max_concurrent_envs=8
)
"""
)

WITH_MAIN = (
    APP
    + """
def main(host="0.0.0.0", port=8000):
    import uvicorn
    uvicorn.run(create_app(WordEnvironment, WordAction, WordObservation), host=host, port=port)
"""
)

PYPROJECT = """
[project]
name = "openenv-word"
[tool.setuptools]
packages = ["word_env", "word_env.server"]
package-dir = { "word_env" = ".", "word_env.server" = "server" }
"""


def write(directory: Path, *, app: str = WITH_APP, pyproject: bool = True, manifest: str = "") -> Path:
    """The environment's files, in `directory`."""
    (directory / "server").mkdir(parents=True)
    files = {
        "__init__.py": "from .client import WordEnv\nfrom .models import WordAction, WordObservation\n",
        "models.py": MODELS,
        "client.py": CLIENT,
        "server/__init__.py": "",
        "server/word_environment.py": ENVIRONMENT,
        "server/app.py": app,
        **({"pyproject.toml": PYPROJECT} if pyproject else {}),
        **({"openenv.yaml": manifest} if manifest else {}),
    }
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory
