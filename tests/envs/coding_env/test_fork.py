"""A live coding session, forked: its interpreter, its files and its random state, through a real server."""

from collections.abc import Iterator

import pytest

from envtorch.envs.coding_env import CodeAction, CodingEnv
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.sandbox import report
from envtorch.server import create_app
from tests.support import running

from .conftest import SMALL


@pytest.fixture
def env(sandboxes: None) -> Iterator[CodingEnv]:
    if report().grade != "host":
        pytest.skip("a sandbox at container grade cannot be forked")
    app = create_app(lambda: CodingEnvironment(policy=SMALL), *CODE_CLASSES, max_concurrent_envs=8)
    with running(app) as server, CodingEnv(server.url) as env:
        env.reset(seed=3)
        yield env


CODE_CLASSES = (CodeAction, CodingEnv.spec().observation)


def run(env: CodingEnv, code: str) -> str:
    result = env.step(CodeAction(code=code))
    assert result.observation.exit_code == 0, result.observation.stderr
    return result.observation.stdout.strip()


def test_copies_begin_alike_and_part_ways(env: CodingEnv) -> None:
    run(env, "import random\nx = [1]\nopen('note.txt', 'w').write('before')")
    one, two = env.fork(2)
    with one, two:
        draws = {run(each, "print(random.random())") for each in (env, one, two)}
        assert len(draws) == 1, "the same random state"
        assert {each.state().step_count for each in (env, one, two)} == {2}
        run(one, "x.append('one')\nopen('note.txt', 'a').write(' one')")
        assert run(one, "print(x, open('note.txt').read())") == "[1, 'one'] before one"
        assert run(two, "print(x, open('note.txt').read())") == "[1] before"
        assert run(env, "print(x, open('note.txt').read())") == "[1] before"


def test_a_copy_of_a_copy_outlives_both(env: CodingEnv) -> None:
    run(env, "x = 41")
    (child,) = env.fork()
    (grandchild,) = child.fork()
    child.close()
    with grandchild:
        env.reset()
        assert run(grandchild, "print(x + 1)") == "42"
