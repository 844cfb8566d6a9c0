"""OpenEnv's import names, served by us. Each case runs in a process of its own: imports are for ever."""

import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.compat.manifest import app_candidates, read_manifest
from envtorch.extras import install_command
from tests.support import PATIENCE_S


def run(code: str, *, arguments: tuple[str, ...] = ("-c",), cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments, code], capture_output=True, text=True, timeout=PATIENCE_S, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_name_of_the_table_is_there() -> None:
    print_all = """
import importlib, envtorch.compat.openenv
from envtorch.compat.table import TABLE
from envtorch.errors import MissingExtra
count = 0
for name in TABLE:
    module = importlib.import_module(name)
    for attribute in dir(module):
        try:
            getattr(module, attribute)
        except MissingExtra as missing:
            # The two extras that developers need not have.
            assert str(missing).endswith(("[daytona]'", "[ray]'")), missing
        count += 1
    exec(f"from {name} import *")
print(count)
"""
    assert int(run(print_all)) > 400


def test_one_tree_under_three_names() -> None:
    same = """
import envtorch.compat.openenv
import openenv.core.env_server.types, openenv_core.env_server.types, core.env_server.types
from core.http_env_client import HTTPEnvClient
from openenv_core import Environment
import envtorch
assert openenv_core.env_server.types is openenv.core.env_server.types
assert core.env_server.types.Action is envtorch.Action
assert Environment is envtorch.Environment
from openenv import *
print(GenericEnvClient.__module__)
"""
    assert run(same) == "envtorch.compat.generic_client"


def test_what_is_not_there_is_an_import_error() -> None:
    missing = """
import envtorch.compat.openenv
for line in ("import openenv.nothing", "from openenv.core import Nothing", "import core.nothing"):
    try:
        exec(line)
    except ImportError as error:
        print(type(error).__name__)
"""
    assert run(missing).split() == ["ModuleNotFoundError", "ImportError", "ModuleNotFoundError"]


def test_replacing_a_name_replaces_what_our_code_calls() -> None:
    patched = """
import envtorch.compat.openenv
from unittest.mock import patch
import envtorch.llm.openai as home
with patch("openenv.core.llm_client.AsyncOpenAI") as fake:
    assert home.AsyncOpenAI is fake
assert home.AsyncOpenAI.__name__ == "AsyncOpenAI"
print("restored")
"""
    assert run(patched) == "restored"


def test_a_missing_extra_is_named_and_missed_only_by_who_needs_it() -> None:
    without = """
import sys
sys.modules["fastmcp"] = None
import envtorch.compat.openenv
from openenv.core.env_server import create_app, CallToolAction
try:
    from openenv.core.env_server.mcp_environment import MCPEnvironment
except ImportError as error:
    print(error)
"""
    assert install_command("mcp") in run(without)


def test_importing_a_name_loads_no_server() -> None:
    light = """
import sys, envtorch.compat.openenv
from openenv.core import EnvClient, Action
heavy = {"fastapi", "uvicorn", "fastmcp", "gradio", "openai", "anthropic"}
print(sorted(heavy & set(sys.modules)))
"""
    assert run(light) == "[]"


def test_the_real_package_keeps_its_names(tmp_path: Path) -> None:
    real = tmp_path / "openenv"
    real.mkdir()
    (real / "__init__.py").write_text("__version__ = 'real'")
    stays = "import envtorch.compat.openenv, openenv; print(openenv.__version__)"
    assert run(stays, cwd=tmp_path) == "real"
    forced = """
import envtorch.compat
envtorch.compat.activate(force=True)
import openenv
print(openenv.core.Action.__module__)
"""
    assert run(forced, cwd=tmp_path) == "envtorch.types"


def test_a_package_called_core_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text("whose = 'mine'")
    assert run("import envtorch.compat.openenv, core; print(core.whose)", cwd=tmp_path) == "mine"


def test_a_mere_folder_does_not_pass_for_the_package(tmp_path: Path) -> None:
    (tmp_path / "openenv").mkdir()
    code = "import envtorch.compat.openenv; from openenv.core import Action; print(Action.__module__)"
    assert run(code, cwd=tmp_path) == "envtorch.types"


def test_a_script_runs_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, openenv\nprint(__name__, sys.argv[1:], openenv.__version__)")
    told = subprocess.run(
        [sys.executable, "-m", "envtorch.compat", str(script), "--flag"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert told.stdout.strip() == "__main__ ['--flag'] 0.10.0"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("app: server.app:app\nport: 8000", "server.app:app"),
        ("app: 'my/place.py'  # a path", "my.place:app"),
        ("app:\n  module: x", "server.app:app"),
        ("description: >\n  app: no field\napp: web:application", "web:application"),
        ("- app: a list", "server.app:app"),
        ("", "server.app:app"),
        ("app: rm -rf / ; echo", "server.app:app"),
    ],
)
def test_a_manifest_may_hold_anything(tmp_path: Path, text: str, first: str) -> None:
    (tmp_path / "openenv.yaml").write_text(text)
    assert app_candidates(read_manifest(tmp_path))[0] == first


def test_of_a_manifest_that_is_not_yaml_the_line_is_told_and_nothing_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "openenv.yaml").write_text("app: web:application\ndescription: a game: for two\n")
    assert read_manifest(tmp_path) == {}
    assert "openenv.yaml is not YAML: line 2: " in caplog.text


def test_our_own_environments_are_found_by_their_names() -> None:
    play = """
import asyncio
import envtorch.compat.openenv
from openenv import AutoAction, AutoEnv
from envtorch.server import create_app
from tests.support import running

assert AutoAction.from_env("coding").__name__ == "CodeAction"
assert AutoEnv.get_env_class("coding-env").__name__ == "CodingEnv"
EchoAction = AutoAction.from_env("echo")
app = create_app("envtorch.envs.echo_env.environment:EchoEnvironment", max_concurrent_envs=4)
with running(app) as server:
    with AutoEnv.from_env("echo", base_url=server.url).sync() as env:
        env.reset()
        print(env.step(EchoAction(message="hello")).observation.echoed_message)

    async def use():
        async with AutoEnv.from_env("echo_env", base_url=server.url) as env:
            await env.reset()
            print((await env.step(EchoAction(message="again"))).observation.echoed_message)

    asyncio.run(use())
"""
    assert run(play).split() == ["hello", "again"]
