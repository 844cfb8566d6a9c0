"""What one sandbox takes, the next one does not miss."""

import pytest

from .elsewhere import NOBODY, run_module

OLD_LANDLOCK = ["--landlock-abi", "3"]


@pytest.mark.parametrize("user", [0, NOBODY], ids=["root", "ordinary user"])
@pytest.mark.parametrize(
    "options",
    [[], ["--container"], ["--container", *OLD_LANDLOCK]],
    ids=["host", "container", "container, old kernel"],
)
def test_a_sandbox_starts_beside_one_that_has_taken_all_it_can(user: int, options: list[str]) -> None:
    done = run_module("tests.sandbox.neighbour_checks", *options, user=user)
    assert done.stdout.endswith("ok\n"), (done.stdout, done.stderr)
