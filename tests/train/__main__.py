"""`make test-train`: install each framework by itself, run its tests there, and print one table.

    python -m tests.train             # all of them
    python -m tests.train trl verl    # these

A framework whose virtual environment cannot be made is skipped, and the table says why.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.train.frameworks import FRAMEWORKS, TORCH, Framework

ROOT = Path(__file__).parents[2]
LONGEST_TEST_S = 1800

Row = tuple[str, str]
"""What ran, and what came of it."""


class NotInstalled(Exception):
    """The virtual environment of a framework cannot be made here."""


def install(framework: Framework) -> Path:
    """The interpreter of the framework's virtual environment, made if it is not there."""
    if sys.version_info < framework.oldest_python:
        raise NotInstalled(f"needs Python {'.'.join(map(str, framework.oldest_python))}")
    place = ROOT / ".venvs" / f"train-{framework.name}"
    python, ready = place / "bin" / "python", place / ".ready"
    wanted = json.dumps([sys.version, *framework.requirements, (ROOT / "pyproject.toml").read_text()])
    if ready.exists() and ready.read_text() == wanted:
        return python
    uv = str(Path(sys.executable).with_name("uv"))
    run(uv, "venv", "--quiet", "--seed", "--clear", "--python", sys.executable, str(place))
    if framework.needs_torch:  # by pip, which also looks where this machine keeps wheels of its own
        run(str(python), "-m", "pip", "install", "--quiet", TORCH)
    installing = (uv, "pip", "install", "--quiet", "--python", str(place))
    run(*installing, *framework.requirements, "--editable", str(ROOT), "--group", "versions")
    ready.write_text(wanted)
    return python


def run(*command: str) -> None:
    """Run to the end. Raises `NotInstalled` with the last line it has printed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise NotInstalled(f"{Path(command[0]).name} failed: {lines[-1].strip()}")


def version_of(python: Path, distribution: str) -> str:
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def play(framework: Framework, python: Path) -> tuple[bool, list[Row]]:
    """Run the framework's tests; whether they passed, and what they reported."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.jsonl"
        report.touch()
        options = ("-m", "train", "-s", "-W", "default", "--timeout", str(LONGEST_TEST_S))
        tests = f"tests/train/test_{framework.name}.py"
        command = [str(python), "-m", "pytest", *options, "--train-report", str(report), tests]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        rows = [(row["what"], row["result"]) for row in map(json.loads, report.read_text().splitlines())]
    if done.returncode:
        rows.append((tests, f"FAILED: pytest ended with {done.returncode}, see above"))
    return done.returncode == 0, rows


def results(frameworks: Sequence[Framework], table: Table) -> Iterator[bool]:
    """Whether each framework's tests passed; their rows are added to the table."""
    for framework in frameworks:
        try:
            python = install(framework)
        except NotInstalled as reason:
            table.add_row(framework.name, "-", "nothing", f"skipped: {reason}")
            continue
        passed, rows = play(framework, python)
        version = version_of(python, framework.distribution)
        for place, (what, result) in enumerate(rows):
            table.add_row(*((framework.name, version) if not place else ("", "")), what, result)
        yield passed


def main(names: Sequence[str]) -> int:
    known = {framework.name: framework for framework in FRAMEWORKS}
    if unknown := [name for name in names if name not in known]:
        print(f"there is no framework {', '.join(unknown)}: there are {', '.join(known)}")
        return 2
    table = Table("framework", "version", "what ran", "result")
    passed = list(results([known[name] for name in names or known], table))
    Console(width=160).print(table)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
