"""The REPL environment's image, built and played on a real engine."""

import pytest

from envtorch.envs.repl_env import REPLEnv
from envtorch.providers.build import build_base, build_environment
from tests.providers.conftest import no_engine
from tests.providers.subjects import PYTHON_IMAGE

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def repl_image() -> str:
    """Built from the sources that are under test; what did not change comes from the engine's cache."""
    if reason := no_engine():
        pytest.skip(f"container tests need an engine with {PYTHON_IMAGE}: {reason}")
    build_base()
    build_environment("repl_env")
    return "repl-env:latest"


def test_an_episode_is_played_in_a_container(repl_image: str) -> None:
    with REPLEnv.from_docker_image(
        repl_image, pull="never", memory="1g", drop_capabilities=True, reward_on_success=2.0
    ) as env:
        env.reset(context="the cat\n" * 50_000, max_iterations=9)
        assert env.execute("n = context.count('cat')\nprint(n)").observation.result.stdout == "50000\n"
        said = env.execute("llm_query('anybody there?')").observation.result.stdout
        assert "no language model is set up" in said
        result = env.execute("FINAL_VAR('n')")
        assert (result.done, result.reward, env.state().final_answer) == (True, 2.0, "50000")
