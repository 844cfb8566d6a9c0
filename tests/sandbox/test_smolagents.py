"""The executor for platforms without the kernel sandbox, behind the same interface."""

import pytest

from envtorch.errors import SessionLost
from envtorch.sandbox import Executor, Outcome

pytest.importorskip("smolagents", reason="smolagents is not installed: pip install 'envtorch[smolagents]'")


def test_it_keeps_the_interface_and_says_what_it_cannot_do() -> None:
    from envtorch.sandbox.smolagents_executor import CANNOT, SmolagentsExecutor

    executor = SmolagentsExecutor(functions={"double": lambda x: 2 * x})
    assert isinstance(executor, Executor)
    assert executor.run("x = double(21)\nprint('hi')").stdout.strip() == "hi"
    result = executor.run("x")
    assert (result.outcome, result.value) == (Outcome.OK, "42")
    failed = executor.run("1 / 0")
    assert failed.outcome is Outcome.ERROR
    assert failed.exception is not None
    assert executor.run("import os").outcome is Outcome.ERROR
    executor.close()
    with pytest.raises(SessionLost):
        executor.run("x")
    assert {"fork", "isolation", "limits"} <= set(CANNOT)
