"""Gymnasium drives its adapter. Run by `make test-train`; the adapter's own tests are beside it."""

import re
import time
from typing import Any

import pytest

from tests.support import Running
from tests.train.buttons import ButtonsEnv, buttons
from tests.train.conftest import Report
from tests.train.programs import run_example

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is installed by `make test-train`")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import envtorch.train.gymnasium_envs  # noqa: E402, F401

pytestmark = pytest.mark.train


def test_gymnasiums_checker_passes(report: Report) -> None:
    with buttons() as server:
        env = gymnasium.make("envtorch/Session-v0", client=ButtonsEnv, base_url=server.url)
        check_env(env.unwrapped, skip_render_check=True)
        env.close()
    report("make, check_env", "passed")


def test_a_policy_learns_on_a_vector(report: Report) -> None:
    returns = [float(found) for found in re.findall(r": (\d\.\d+) ", run_example("gymnasium_learning"))]
    assert returns[0] < 0.5
    assert returns[-1] > 0.9
    report("make_vec(vector_entry_point, 64), tabular learning", f"{returns[0]:.2f} -> {returns[-1]:.2f}")


def steps_per_second(server: Running, mode: str, **options: Any) -> float:
    given = {"client": ButtonsEnv, "base_url": server.url}
    envs = gymnasium.make_vec("envtorch/Session-v0", 64, mode, **given, **options)
    seen, _ = envs.reset(seed=1)
    began, count = time.perf_counter(), 20
    for _ in range(count):
        seen, *_ = envs.step(seen)
    took = time.perf_counter() - began
    envs.close()
    return 64 * count / took


def test_the_vector_is_compared_with_gymnasiums_own(report: Report) -> None:
    with buttons(sessions=128) as server:
        ours, theirs = (steps_per_second(server, mode) for mode in ("vector_entry_point", "sync"))
    report("steps per second of 64 sessions, beside SyncVectorEnv", f"{ours:.0f} beside {theirs:.0f}")
