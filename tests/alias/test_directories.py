"""`envtorch serve DIR`: where the application is found, what is executed, and what is said when it cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.client import GenericEnvClient
from tests.alias import environment_files as files
from tests.alias.test_serving import served
from tests.support import PATIENCE_S

ENVTORCH = [sys.executable, "-m", "envtorch.cli"]


def refused(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [*ENVTORCH, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "300"},
    )
    assert done.returncode != 0
    return done.stderr


def plays(directory: Path) -> bool:
    with served(directory) as url, GenericEnvClient(url, wire="openenv") as env:
        env.reset(seed=1)
        return bool(env.step({"word": "a"}).observation["words"] == ["a"])


def src_layout(directory: Path, *, manifest: str = "") -> Path:
    """The environment as `src/word_env`, with nothing of it beside."""
    files.write(directory / "src" / "word_env", pyproject=False)
    (directory / "pyproject.toml").write_text("[project]\nname = 'openenv-word'\n")
    if manifest:
        (directory / "openenv.yaml").write_text(manifest)
    return directory


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "name: word_env\napp: word_env.server.app:app\n",
        "name: word_env\napp: src/word_env/server/app.py\n",
    ],
    ids=["no manifest", "manifest names the module", "manifest names the file"],
)
def test_a_src_layout_is_served(tmp_path: Path, manifest: str) -> None:
    assert plays(src_layout(tmp_path / "checkout", manifest=manifest))


@pytest.mark.parametrize(
    "named", ["server.entry:service", "word_env.server.entry:service", "server/entry.py:service"]
)
def test_the_app_that_the_manifest_names_is_served(tmp_path: Path, named: str) -> None:
    directory = files.write(tmp_path / "word_env", manifest=f"name: word_env\napp: {named}\n")
    source = (directory / "server/app.py").read_text().replace("app = create_app", "service = create_app")
    (directory / "server/entry.py").write_text(source)
    (directory / "server/app.py").write_text("raise RuntimeError('this is not the one')\n")
    assert plays(directory)


@pytest.mark.parametrize("name", ["word_env", "some-checkout"])
@pytest.mark.parametrize(
    "broken", ["import nothing_of_the_kind\n", "raise RuntimeError('not for servers')\n", "def f(:\n"]
)
def test_a_broken_root_init_that_is_not_needed_is_not_executed(
    tmp_path: Path, name: str, broken: str
) -> None:
    directory = files.write(tmp_path / name)
    (directory / "__init__.py").write_text(broken)
    assert plays(directory)


def test_a_broken_root_init_does_not_stop_modules_that_import_their_package(tmp_path: Path) -> None:
    directory = files.write(tmp_path / "word_env")
    for path in (directory / "server").glob("*.py"):
        text = path.read_text().replace("from ..models import", "from word_env.models import")
        path.write_text(text.replace("from models import", "from word_env.models import"))
    (directory / "__init__.py").write_text("import nothing_of_the_kind\n")
    assert plays(directory)


def test_a_root_init_that_is_needed_and_broken_is_named(tmp_path: Path) -> None:
    directory = files.write(tmp_path / "word_env")
    app = (directory / "server/app.py").read_text()
    (directory / "server/app.py").write_text("from word_env import WordAction\n" + app)
    (directory / "__init__.py").write_text("from .client import WordEnv\nimport nothing_of_the_kind\n")
    said = refused("serve", directory, cwd=tmp_path)
    assert "needs the module 'nothing_of_the_kind', which is not installed" in said
    assert "__init__.py, line 2" in said


def test_a_missing_dependency_is_named(tmp_path: Path) -> None:
    directory = files.write(tmp_path / "finrl_env")
    environment = directory / "server/word_environment.py"
    environment.write_text("import finrl\n" + environment.read_text())
    (directory / "finrl_helpers.py").write_text("")
    said = refused("serve", directory, cwd=tmp_path)
    assert "the environment in finrl_env needs the module 'finrl', which is not installed" in said
    assert "word_environment.py, line 1" in said
    assert "pip install finrl" in said


def test_a_directory_with_the_name_of_a_bundled_environment_is_served_and_said_so(tmp_path: Path) -> None:
    files.write(tmp_path / "echo_env")
    command = [*ENVTORCH, "serve", "echo_env", "--port", "0"]
    server = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = server.stderr.readline()
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_S)
    assert f"serves the directory {tmp_path / 'echo_env'}" in said
    assert "not the bundled echo_env, which is envtorch.envs.echo_env.app:app" in said


@pytest.mark.parametrize("target", ["game.py", "./game.py", "game.py:Second", "./sub/inner.py:Second"])
def test_a_file_is_served(tmp_path: Path, target: str) -> None:
    source = "from envtorch.envs.echo_env.environment import EchoEnvironment\n"
    source += "from envtorch import create_app\n\nclass Second(EchoEnvironment): ...\n"
    (tmp_path / "sub").mkdir()
    (tmp_path / "game.py").write_text(source)
    (tmp_path / "sub/inner.py").write_text(source)
    command = [*ENVTORCH, "serve", target, "--port", "0"]
    server = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = server.stderr.readline()
        with GenericEnvClient(said.split(" on ")[1].split()[0]) as env:
            env.reset()
            assert env.step({"message": "hi"}).observation["echoed_message"] == "hi"
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_S)
