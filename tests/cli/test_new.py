"""`envtorch new`: what it makes passes its own tests, types and check, on a fresh machine too."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.cli.new import ProjectNames, write_project
from envtorch.errors import ConfigurationError
from tests.support import PATIENCE_S

BIN = Path(sys.executable).parent
ENVTORCH = [sys.executable, "-m", "envtorch.cli"]


def run(command: list[str], *, cwd: Path, path: Path = BIN, timeout: float = 500) -> str:
    """What a command prints, run as by a person whose PATH begins with `path`; it must go well."""
    dropped = ("VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTEST_ADDOPTS")
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    environ["PATH"] = f"{path}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, timeout=timeout)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    ("name", "package", "project", "prefix"),
    [
        ("wordle", "wordle", "wordle", "Wordle"),
        ("word-chain_env", "word_chain_env", "word-chain-env", "WordChain"),
        ("Chess960", "chess960", "chess960", "Chess960"),
    ],
)
def test_names(name: str, package: str, project: str, prefix: str) -> None:
    names = ProjectNames.of(name)
    assert (names.package, names.project, names.prefix) == (package, project, prefix)


@pytest.mark.parametrize(
    "name", ["", "9lives", "a b", "a/b", "../x", "_x", "x_", "class", "json", "tests", "envtorch"]
)
def test_names_that_will_not_do(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be a name|is taken"):
        ProjectNames.of(name)


def test_nothing_of_the_template_is_left(tmp_path: Path) -> None:
    written = write_project(tmp_path / "word-chain", ProjectNames.of("word-chain"))
    names = {str(path.relative_to(tmp_path / "word-chain")) for path in written}
    assert names >= {
        "Makefile",
        "Dockerfile",
        "README.md",
        "pyproject.toml",
        ".gitignore",
        "word_chain/app.py",
    }
    for path in written:
        text = f"{path.relative_to(tmp_path)} {path.read_text()}"
        for trace in ("my_game", "my-game", "MyGame", "My game", "dot-"):
            assert trace not in text, path
    assert (tmp_path / "word-chain/.github/workflows/ci.yml").is_file()


def test_the_state_of_a_new_environment_does_not_hold_the_answer(tmp_path: Path) -> None:
    run([str(BIN / "envtorch"), "new", "riddle"], cwd=tmp_path)
    play = (
        "from riddle import RiddleEnv\n"
        "with RiddleEnv.local() as env:\n"
        "    for seed in range(30):\n"
        "        env.reset(seed=seed, episode_id='same')\n"
        "        print(env.state().model_dump_json())\n"
    )
    told = run([sys.executable, "-c", play], cwd=tmp_path / "riddle")
    assert len(set(told.splitlines())) == 1, "thirty secret numbers, and one state"


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "wordle").mkdir()
    (tmp_path / "wordle/mine.txt").write_text("precious")
    done = subprocess.run(
        [*ENVTORCH, "new", "wordle"], capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S
    )
    assert done.returncode == 2
    assert "wordle is there already" in done.stderr
    assert "Next: choose another name" in done.stderr
    assert [path.name for path in (tmp_path / "wordle").iterdir()] == ["mine.txt"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_new_make_test_check(tmp_path: Path) -> None:
    said = run([*ENVTORCH, "new", "wordle"], cwd=tmp_path)
    assert "make test" in said
    project = tmp_path / "wordle"
    tested = run(["make", "test"], cwd=project)
    assert "6 passed" in tested
    assert "no issues found" in tested
    assert not (project / ".venv").exists(), "the Python that has everything is used as it is"
    assert "0 errors, 0 warnings" in run([*ENVTORCH, "check", "."], cwd=project)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_a_machine_that_has_nothing_but_envtorch(tmp_path: Path) -> None:
    """EnvTorch from a wheel in an environment of its own, with no test tools: `make test` brings them."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", bare], check=True, timeout=PATIENCE_S)
    (wheel,) = run([*ENVTORCH, "wheel", str(tmp_path)], cwd=tmp_path).split()
    pip = [str(bare / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", wheel]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=600)
    if installed.returncode != 0:
        pytest.skip(f"there is no package index here: {installed.stderr[-300:]}")
    run(["envtorch", "new", "wordle"], cwd=tmp_path, path=bare / "bin")
    tested = run(["make", "test"], cwd=tmp_path / "wordle", path=bare / "bin", timeout=800)
    assert "6 passed" in tested
    assert "0 errors" in run(["envtorch", "check", "."], cwd=tmp_path / "wordle", path=bare / "bin")
    shutil.rmtree(tmp_path / "wordle/.venv")
