"""RLlib's PPO drives the Gymnasium adapter. Run by `make test-train`."""

import re

import pytest

from tests.train.conftest import Report
from tests.train.programs import run_example

pytest.importorskip("ray.rllib", reason="RLlib is installed by `make test-train`")

pytestmark = pytest.mark.train


def test_ppo_learns(report: Report) -> None:
    returns = [float(found) for found in re.findall(r"return (\d\.\d+)", run_example("rllib_ppo"))]
    assert returns[0] < 0.15
    assert max(returns) > 0.8
    report("PPO on the Gymnasium adapter, mean return", f"{returns[0]:.2f} -> {returns[-1]:.2f}")
