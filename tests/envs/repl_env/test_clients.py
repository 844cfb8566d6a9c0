"""How a REPL is opened: with a server of its own, from the command line, and at no cost to a client."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any, assert_type

import pytest

from envtorch.envs.repl_env import AsyncREPLEnv, REPLAction, REPLEnv, REPLObservation
from envtorch.errors import ConfigurationError
from envtorch.providers import ProcessProvider
from envtorch.types import StepResult
from tests.providers.test_clients import Recording
from tests.support import PATIENCE_S, eventually

APP = "envtorch.envs.repl_env.app:app"
EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_client_starts_its_own_server_and_its_rules_go_along(sandboxes: None) -> None:
    provider = ProcessProvider()
    with REPLEnv.from_docker_image(
        APP, provider=provider, reward_on_success=3.0, message_timeout_s=50.0
    ) as env:
        assert_type(env, REPLEnv)
        env.reset(context="hello", max_iterations=5)
        result = env.execute("FINAL(len(context))")
        assert_type(result, StepResult[REPLObservation])
        assert (result.reward, result.observation.max_iterations) == (3.0, 5)


def test_the_async_twin_does_too(sandboxes: None) -> None:
    async def main() -> None:
        client = await REPLEnv.aio.from_docker_image(APP, provider=ProcessProvider(), reward_on_iteration=0.5)
        async with client as env:
            await env.reset()
            assert (await env.execute("1")).reward == 0.5
            assert await env.list_variables() == ["answer"]

    asyncio.run(main())
    assert REPLEnv.aio is AsyncREPLEnv


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_space_is_started_from_its_image(colour: str) -> None:
    provider = Recording("http://127.0.0.1:1")
    options: dict[str, Any] = {"provider": provider, "revision": "v2", "reward_on_error": -2.0}
    if colour == "blocking":
        REPLEnv.from_hub("Some-Org/repl_env", **options).close()
    else:

        async def main() -> None:
            await (await AsyncREPLEnv.from_hub("Some-Org/repl_env", **options)).close()

        asyncio.run(main())
    assert provider.diary[0] == ("start", "registry.hf.space/some-org-repl-env:v2", None, {})
    assert provider.diary[-1] == "stop"


def test_a_misspelt_option_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="reward_on_sucess"):
        REPLEnv(reward_on_sucess=1.0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="not the name of a variable"):
        REPLEnv().get_variable("x); import os; (x")


def test_a_session_is_forked_over_a_server(sandboxes: None) -> None:
    from envtorch.sandbox import report
    from envtorch.server import create_app
    from tests.support import running

    from .places import make_environment

    if report().grade != "host":
        pytest.skip("a sandbox at container grade cannot be forked")
    app = create_app(make_environment, REPLAction, REPLObservation, max_concurrent_envs=4)
    with running(app) as server:
        with REPLEnv(server.url) as env:
            env.reset(context="c")
            env.execute("x = [1]")
            (copy,) = env.fork()
            with copy:
                assert copy.execute("x.append(2); x").observation.result.stdout == "[1, 2]"
            assert env.execute("x").observation.result.stdout == "[1]"

        async def main() -> None:
            async with AsyncREPLEnv(server.url) as env:
                await env.reset(context="c")
                await env.execute("x = [1]")
                (copy,) = await env.fork()
                async with copy:
                    assert (await copy.get_variable("x")).observation.result.stdout == "[1]\n"

        asyncio.run(main())
        eventually(lambda: server.sessions.active == 0, "every session is closed")


def test_a_client_loads_no_sandbox_and_no_server() -> None:
    code = "import sys, envtorch.envs.repl_env; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    heavy = (
        "envtorch.sandbox",
        "envtorch.server",
        "envtorch.envs.repl_env.environment",
        "httpx",
        "rich",
        "fastapi",
    )
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_every_public_name_is_there() -> None:
    import envtorch.envs.repl_env as package

    assert package.__all__ == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


def test_the_example_runs(sandboxes: None, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "recursive_language_model.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The answer: 1000" in done.stdout
    assert "The same from the record: 1000" in done.stdout
