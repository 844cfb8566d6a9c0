"""TorchRL drives the Gymnasium adapter. Run by `make test-train`."""

import pytest

from tests.train.conftest import Report
from tests.train.programs import run_example

pytest.importorskip("torchrl", reason="TorchRL is installed by `make test-train`")

pytestmark = pytest.mark.train


def test_torchrl_checks_and_collects(report: Report) -> None:
    told = run_example("torchrl_collector")
    assert "check_env_specs passed" in told
    assert "80 episodes, mean return 1.00" in told
    report("GymWrapper, check_env_specs, Collector", told.strip().splitlines()[-1])
