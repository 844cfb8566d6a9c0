"""What the tests of all frameworks share."""

import json
import resource
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

Report = Callable[[str, str], None]

_ROWS = pytest.StashKey[list[tuple[str, str]]]()
_CPU_S = pytest.StashKey[float]()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Adds a row to the table of `make test-train`: what ran, and its result."""
    rows = request.node.stash.setdefault(_ROWS, [])

    def add(what: str, result: str) -> None:
        print(f"{what}: {result}")
        rows.append((what, result))

    return add


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Measures the CPU seconds of a test and of the processes that have ended in it."""
    before_s = _cpu_s()
    try:
        return (yield)
    finally:
        item.stash[_CPU_S] = _cpu_s() - before_s


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Writes a line for each test that is over to the file of `--train-report`."""
    told = yield
    path: str | None = item.config.getoption("--train-report")
    if path is not None and (told.when == "call" or not told.passed):
        line = {
            "test": item.name,
            "outcome": told.outcome,
            "cpu_s": item.stash.get(_CPU_S, 0.0),
            "rows": item.stash.get(_ROWS, []),
            "problem": "" if told.passed else _last_line(told),
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")
    return told


def _cpu_s() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def _last_line(told: pytest.TestReport) -> str:
    if isinstance(told.longrepr, tuple):  # of a test that was skipped: file, line, reason
        return str(told.longrepr[2])
    crash = getattr(told.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else told.longreprtext
    return (text.strip().splitlines() or [""])[0]
