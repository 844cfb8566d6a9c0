"""A virtual environment for each framework, made when it is first needed."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.train.frameworks import TORCH, Framework

__all__ = ["ROOT", "CannotInstall", "NoInterpreter", "install", "version_of"]

ROOT = Path(__file__).parents[2]


class CannotInstall(Exception):
    """The virtual environment of a framework cannot be made here."""


class NoInterpreter(CannotInstall):
    """This machine has no Python that is new enough for the framework."""


def install(framework: Framework) -> Path:
    """The interpreter of the framework's virtual environment, made anew if what it needs has changed."""
    place = ROOT / ".venvs" / f"train-{framework.name}"
    python, ready = place / "bin" / "python", place / ".ready"
    base = interpreter(framework.oldest_python)
    wanted = json.dumps([base, *framework.requirements, *_own_requirements()])
    if ready.exists() and ready.read_text() == wanted:
        return python
    uv = str(Path(sys.executable).with_name("uv"))
    run(uv, "venv", "--quiet", "--seed", "--clear", "--python", base, str(place))
    if framework.needs_torch:  # by pip, which also looks where a machine keeps wheels of its own
        run(str(python), "-m", "pip", "install", "--quiet", TORCH)
    installing = (uv, "pip", "install", "--quiet", "--python", str(place))
    run(*installing, *framework.requirements, "--editable", str(ROOT), "--group", "versions")
    ready.write_text(wanted)
    return python


def interpreter(oldest: tuple[int, int]) -> str:
    """This interpreter if it is new enough, else one of the machine. Raises `NoInterpreter`."""
    if sys.version_info >= oldest:
        return sys.executable
    version = ".".join(map(str, oldest))
    candidates = [f"python{version}"]
    if shutil.which("pyenv"):  # its `python3.12` on PATH fails unless that version is selected
        prefix = subprocess.run(["pyenv", "prefix", version], capture_output=True, text=True, check=False)
        candidates.append(f"{prefix.stdout.strip()}/bin/python")
    for candidate in candidates:
        found = shutil.which(candidate)
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    raise NoInterpreter(f"it needs Python {version}, and there is no python{version} on PATH")


def run(*command: str) -> None:
    """Run to the end. Raises `CannotInstall` with the last line it has printed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise CannotInstall(f"{' '.join(command[:3])} failed: {lines[-1].strip()}")


def version_of(python: Path, distribution: str) -> str:
    """The version of a package that is installed there."""
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def _own_requirements() -> list[Any]:
    """What EnvTorch and its tests need, so that a change of it makes the environments anew."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own = project["project"]
    return [own["dependencies"], own["entry-points"], project["dependency-groups"]["versions"]]
