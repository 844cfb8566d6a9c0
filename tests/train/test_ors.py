"""The client of the Open Reward Standard plays on our server. Run by `make test-train`."""

import pytest

from tests.train.conftest import Report
from tests.train.programs import run_example

pytest.importorskip("openreward", reason="openreward is installed by `make test-train`")

pytestmark = pytest.mark.train


def test_its_client_plays_every_task(report: Report) -> None:
    told = run_example("ors_session")
    assert "8 episodes, mean return 1.00" in told
    report("its client on our session routes", told.strip().splitlines()[-1])
