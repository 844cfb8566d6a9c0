"""What the pages presuppose: files of the reader's own, and what a test cannot run."""

import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULE = """
from envtorch import create_app
from envtorch.envs.echo_env.environment import EchoEnvironment


class MyEnvironment(EchoEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True


app = create_app(MyEnvironment, sessions=16)
"""

ONE_STEP = """
from envtorch import create_app
from envtorch.envs.echo_env.environment import EchoEnvironment


class MyEnvironment(EchoEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def step(self, action):
        observation = super().step(action)
        observation.done = True
        return observation


app = create_app(MyEnvironment, sessions=64)
"""

OPENENV = """
from fastmcp import FastMCP
from openenv.core.env_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State


class Counter(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("counter")
        self.count = 0
        self.episode_id = None

        @tools.tool
        def add(number: int) -> int:
            self.count += number
            return self.count

        super().__init__(tools)

    def reset(self, seed=None, episode_id=None) -> Observation:
        self.count, self.episode_id = 0, episode_id
        return Observation()

    def _step_impl(self, action, timeout_s=None) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State(step_count=self.count, episode_id=self.episode_id)


app = create_app(Counter, CallToolAction, CallToolObservation, env_name="counter", max_concurrent_envs=8)
"""

FILES = {
    "my_module.py": MODULE,
    "my_package/__init__.py": "",
    "my_package/app.py": MODULE,
    "my_env/app.py": ONE_STEP,
    "my_environment/app.py": MODULE,
    "path/to/env/server/app.py": OPENENV,
    "path/to/an_openenv_environment/server/app.py": OPENENV,
    "script.py": "from openenv.core import GenericEnvClient\n\nprint(GenericEnvClient.__module__)\n",
    "book.txt": "the cat and the hat\n",
    "tokens": "a-token-of-the-scene\n",
}


@dataclass(frozen=True)
class NotRun:
    """Commands that the tests do not run: a pattern of `page: command`, and why."""

    pattern: str
    reason: str

    def matches(self, page: str, command: str) -> bool:
        return re.search(self.pattern, f"{page}: {command}") is not None


NOT_RUN = [
    NotRun(
        r"^docs/cli\.md: ", "tests/cli/test_transcript.py runs these, with a container engine if there is one"
    ),
    NotRun(
        r": (python3 -m venv .venv|pip install) ",
        "needs a package index; every test runs on what it installs",
    ),
    NotRun(
        r": (docker run|envtorch build) ", "needs a container engine; tests/cli/test_transcript.py runs both"
    ),
    NotRun(
        r": envtorch rootfs from-(image|dockerfile) ",
        "needs a container engine; tests/providers/test_image_export.py",
    ),
    NotRun(
        r": envtorch rootfs debian ",
        "fetches packages; tests/sandbox/test_prepared_roots.py has what it makes",
    ),
    NotRun(r": make test-train", "a target of its own, for half an hour"),
    NotRun(r": nginx -c ", "not installed everywhere; tests/proxies plays through this configuration"),
    NotRun(r"examples/train_grpo\.py", "needs torch and minutes; `make test-train` trains with it"),
    NotRun(r"vf-eval", "needs verifiers; `make test-train` runs its evaluation"),
]

NEEDS = {
    "sandbox": "done where a sandbox can start",
    "workspace": "done where a sandbox can have a root that is written to",
    "datasets": "done where it is installed",
    "docker": "tests/providers/test_docker.py, where there is an engine",
    "hub": "tests/providers/test_uv.py, and test_docker.py where there is an engine",
    "daytona": "tests/providers/test_daytona.py, on an interface of its own",
    "ray": "make test-ray, make test-train",
    "a model endpoint": "tests/rollout/test_endpoint_policy.py",
    "transformers": "tests/rollout/test_tokens.py, and make test-train with a real tokenizer",
    "gymnasium": "make test-train",
    "inspect_ai": "make test-train",
    "openreward": "make test-train",
    "skyrl": "make test-train",
    "skyrl_gym": "make test-train",
    "tinker_cookbook": "make test-train",
    "torchrl": "make test-train",
    "trl": "make test-train",
    "verifiers": "make test-train",
}
"""What blocks of Python say they need, and where what they use is tested if a page cannot be done here."""

COMMANDS_NEED = {
    "sandbox": r"doctor|coding_env|repl_env",
    "workspace": r"my-task|terminal_env",
    "curl": r"^curl ",
    "openssl": r"\bopenssl ",
}
"""Commands that only some machines can run, by what they need."""


FOR_A_CLUSTER = re.compile(r" \| kubectl .*")
"""What stays out of a command that is run: it needs a cluster (`make test-k8s` applies what is rendered)."""


def set_up(directory: Path) -> None:
    """Write what a reader of the pages would have."""
    with tarfile.open(directory / "rootfs.tar.gz", "w:gz", dereference=True) as archive:
        archive.add(shutil.which("bash") or "/bin/bash", "bin/bash")
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def why_not_run(page: str, command: str) -> str | None:
    return next((entry.reason for entry in NOT_RUN if entry.matches(page, command)), None)


def missing(command: str, there: set[str]) -> bool:
    """Whether a command needs what is not there."""
    return any(need not in there and re.search(pattern, command) for need, pattern in COMMANDS_NEED.items())


def unused(commands: Iterator[tuple[str, str]]) -> list[NotRun]:
    """The entries of the list that match no command."""
    every = list(commands)
    return [entry for entry in NOT_RUN if not any(entry.matches(*one) for one in every)]
