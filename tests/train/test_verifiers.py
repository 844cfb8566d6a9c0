"""verifiers' `vf-eval` plays on our server. Run by `make test-train`."""

import pytest

from tests.train.conftest import Report
from tests.train.programs import run_example

pytest.importorskip("verifiers", reason="verifiers is installed by `make test-train`")

pytestmark = pytest.mark.train


def test_both_tasksets_are_played(report: Report) -> None:
    told = dict(line.split(": ", 1) for line in run_example("verifiers_evaluation").strip().splitlines())
    assert told["ours"] == told["openenv"] == "8 episodes, mean reward 1.00"
    report("vf-eval, a taskset of ours", told["ours"])
    report("vf-eval, its own openenv taskset, unchanged", told["openenv"])
