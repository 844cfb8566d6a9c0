"""What the tests of all frameworks share."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Report = Callable[[str, str], None]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Adds a row to the table of `make test-train`: what ran, and its result."""
    path: str | None = request.config.getoption("--train-report")

    def add(what: str, result: str) -> None:
        print(f"{what}: {result}")
        if path is not None:
            with Path(path).open("a") as file:
                file.write(json.dumps({"what": what, "result": result}) + "\n")

    return add
