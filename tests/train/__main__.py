"""`make test-train`: install each framework by itself, run its tests there, and print one table.

    python -m tests.train                      # all of them
    python -m tests.train --only verl,skyrl    # these
    python -m tests.train --resume             # those that have not passed since the last run without it

Environments are kept in `.venvs/train-NAME`, what the tests print in `.artefacts/train/NAME.log`. The status
is 1 if a test fails or a framework cannot be installed. One that this machine has no interpreter for is
skipped, and the table says so.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from tests.train.framework_results import FrameworkResult, FrameworkStatus, PlayedTest, table_of
from tests.train.framework_venvs import ROOT, CannotInstall, NoInterpreter, install, version_of
from tests.train.frameworks import FRAMEWORKS, Framework

KEPT = ROOT / ".artefacts" / "train"
LONGEST_TEST_S = 1800
LOOK_EVERY_S = 2.0
LAST_LINES = 40
BAD = (FrameworkStatus.FAILED, FrameworkStatus.NOT_INSTALLED)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def play(framework: Framework) -> FrameworkResult:
    """Install the framework and run its tests."""
    say(f"{framework.name}: .venvs/train-{framework.name}")
    try:
        python = install(framework)
    except CannotInstall as error:
        is_skipped = isinstance(error, NoInterpreter)
        status = FrameworkStatus.SKIPPED if is_skipped else FrameworkStatus.NOT_INSTALLED
        return FrameworkResult(name=framework.name, version="-", python="", status=status, reason=str(error))
    played, reason = [], ""
    log = KEPT / f"{framework.name}.log"
    with tempfile.TemporaryDirectory() as scratch, log.open("wb") as output:
        lines = Path(scratch) / "tests.jsonl"
        lines.touch()
        options = ("-v", "-m", "train", "-s", "-W", "default", "--timeout", str(LONGEST_TEST_S))
        pytest = subprocess.Popen(
            [str(python), "-m", "pytest", *options, "--train-report", str(lines), *framework.tests],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        for test in results_of(pytest, lines):
            say(f"{framework.name}: {test.test} {test.outcome}, {test.cpu_s:.1f} CPU s")
            played.append(test)
    if pytest.returncode:
        reason = f"pytest ended with {pytest.returncode}, see {log.relative_to(ROOT)}"
        print(*log.read_text(errors="replace").splitlines()[-LAST_LINES:], sep="\n", flush=True)
    return FrameworkResult(
        name=framework.name,
        version=version_of(python, framework.distribution),
        python=python_version(python),
        status=FrameworkStatus.FAILED if pytest.returncode else FrameworkStatus.PASSED,
        reason=reason,
        tests=played,
    )


def results_of(pytest: "subprocess.Popen[bytes]", lines: Path) -> Iterator[PlayedTest]:
    """Each test's result when it is over, until pytest has ended."""
    with lines.open() as file:
        is_over = False
        while not is_over:
            try:
                pytest.wait(LOOK_EVERY_S)
                is_over = True
            except subprocess.TimeoutExpired:
                pass
            yield from map(PlayedTest.model_validate_json, file)


def python_version(python: Path) -> str:
    code = "import platform; print(platform.python_version())"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def wanted(only: str) -> list[Framework]:
    """The frameworks of a comma-separated list, or all. Raises `SystemExit` for one that is unknown."""
    known = {framework.name: framework for framework in FRAMEWORKS}
    names = [name.strip() for name in only.replace(" ", ",").split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no framework {', '.join(unknown)}: there are {', '.join(known)}")
    return [known[name] for name in names or known]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.train", description="Drive adapters by trainers.")
    parser.add_argument("--only", default="", metavar="NAMES", help="these frameworks: verl,skyrl")
    parser.add_argument("--resume", action="store_true", help="keep the rows of those that passed before")
    given = parser.parse_args(arguments)
    KEPT.mkdir(parents=True, exist_ok=True)
    frameworks = {KEPT / f"{framework.name}.json": framework for framework in wanted(given.only)}
    if not given.resume:
        for kept in frameworks:
            kept.unlink(missing_ok=True)
    results = []
    for kept, framework in frameworks.items():
        result = FrameworkResult.read(kept)
        if result is None or result.status is not FrameworkStatus.PASSED:
            result = play(framework)
            result.write(kept)
        say(f"{framework.name}: {result.status}, {result.cpu_s:.0f} CPU s")
        results.append(result)
    Console(width=160).print(table_of(results))
    failed = [result.name for result in results if result.status in BAD]
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
