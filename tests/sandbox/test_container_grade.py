"""Container grade, with namespaces switched off by the policy."""

import pytest

from .elsewhere import NOBODY, run_module


@pytest.mark.parametrize("user", [0, NOBODY], ids=["root", "ordinary user"])
def test_it_works_and_says_what_it_cannot_do(user: int) -> None:
    done = run_module("tests.sandbox.container_checks", user=user)
    assert done.stdout == "ok\n", done.stderr
