"""Tasks as an ordinary user. Run by `test_ordinary_users`, as that user."""

import sys
import tempfile
from pathlib import Path

from envtorch.envs.terminal_env import BashAction
from envtorch.envs.terminal_env.environment import TerminalEnvironment
from envtorch.errors import ConfigurationError, EnvironmentFailed
from envtorch.sandbox import Policy, Workspace
from tests.envs.terminal_env.made_tasks import make_task
from tests.sandbox.roots import make_small_root

OTHER_USERS = 'schema_version = "1.4"\n[metadata.envtorch]\nother_users = true\n'


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = make_small_root(Path(folder) / "root")
        policy = Policy(root=str(root), disk_bytes=16 << 20, open_files=256, timeout_s=20)
        try:
            Workspace(policy).close()
        except ConfigurationError as error:
            print(f"refused: {error}")
            return 3
        tasks = Path(folder) / "tasks"
        make_task(tasks / "by-others", "echo 0 > /logs/verifier/reward.txt", **{"task.toml": OTHER_USERS})
        make_task(tasks / "by-root", "echo 1 > /logs/verifier/reward.txt")
        environment = TerminalEnvironment(policy=policy, tasks=tasks)
        try:
            environment.reset(task="by-others")
        except EnvironmentFailed as error:
            print(error)
        else:
            raise AssertionError("a task was begun whose tests cannot run")
        environment.reset(task="by-root")
        assert environment.step(BashAction("pwd")).output == "/app\n"
        environment.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
