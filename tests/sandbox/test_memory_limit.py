"""The memory limit counts what a sandbox uses, not the addresses that it has mapped."""

import errno
import importlib.util
import logging
import os
import re
import time
from collections.abc import Iterator

import pytest

from envtorch.envs.coding_env import CodeAction, CodingEnv
from envtorch.errors import SessionLost
from envtorch.sandbox import Outcome, Policy, Sandbox, Workspace
from envtorch.sandbox.monitor import Excess, Monitor, find_excess
from envtorch.sandbox.usage import Usage, measure
from tests.sandbox.roots import HOST, require_host_root
from tests.support import eventually

MEGABYTE = 2**20
PACKAGES = {
    "numpy": "import numpy as np\nfloat(np.linalg.inv(np.eye(300) * 2).sum())",
    "pandas": (
        "import numpy as np, pandas as pd\n"
        "frame = pd.DataFrame({'key': np.arange(6_000_000) % 7, 'value': np.ones(6_000_000)})\n"
        "float(frame.groupby('key')['value'].sum().sum())"
    ),
    "matplotlib": (
        "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt, os\n"
        "plt.plot(range(1000))\nplt.savefig('plot.png')\nfloat(os.path.getsize('plot.png') > 1000)"
    ),
    "torch": (
        "import torch\nx = torch.ones(500, 500, requires_grad=True)\n(x @ x).sum().backward()\n"
        "float(x.grad.mean())"
    ),
}
EXPECTED = {"numpy": 150.0, "pandas": 6_000_000.0, "matplotlib": 1.0, "torch": 1000.0}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", PACKAGES)
def test_the_usual_packages_work_under_the_default_limits(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    with Sandbox(Policy(timeout_s=240)) as sandbox:
        result = sandbox.run(PACKAGES[package])
        assert result.outcome is Outcome.OK, (result.exception, result.stderr)
        assert result.json() == EXPECTED[package]


def test_addresses_that_are_not_used_do_not_count(sandbox: Sandbox) -> None:
    code = "import mmap\nreserved = mmap.mmap(-1, 2 * 2**30)\nreserved[0] = 1\nlen(reserved)"
    assert sandbox.run(code).json() == 2 * 2**30
    assert sandbox.run("x = bytearray(100 * 2**20)\nlen(x)").json() == 100 * MEGABYTE


def test_the_message_says_what_the_limit_is_and_what_was_in_use() -> None:
    with CodingEnv.local() as env:
        env.reset()
        seen = env.step(CodeAction(code="x = bytearray(2**34)")).observation
        assert seen.outcome == "out of memory"
        found = re.search(
            r"the limit is 512 MB, and its interpreter had (\d+) MB in use at most", seen.stderr
        )
        assert found, seen.stderr
        assert int(found[1]) < 100, "nothing of the sort was ever used"


def test_a_sandbox_that_used_too_much_is_told_so() -> None:
    policy = Policy(memory_bytes=32 * MEGABYTE, disk_bytes=MEGABYTE, timeout_s=60)
    with Sandbox(policy) as sandbox:
        code = "import mmap, time\nx = mmap.mmap(-1, 2**30)\nfor i in range(0, 2**30, 4096): x[i] = 1"
        result = sandbox.run(code)
        assert result.outcome is Outcome.OUT_OF_MEMORY
        assert result.exception is not None
        assert re.search(r"(limit is|more than) 65 MB", result.exception.message), result.exception.message


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        (Usage(1, 1, 100 * MEGABYTE, 10), None),
        (Usage(12, 12, 0, 0), None),
        (Usage(13, 13, 0, 0), Excess("processes", 13, 12)),
        (Usage(1, 13, 0, 0), Excess("processes", 13, 12)),
        (Usage(2, 2, 113 * MEGABYTE, 0), Excess("memory", 113 * MEGABYTE, 112 * MEGABYTE)),
        (Usage(8, 8, 0, 257), Excess("descriptors", 257, 256)),
    ],
)
def test_the_limits_of_a_sandbox_as_a_whole(usage: Usage, found: Excess | None) -> None:
    policy = Policy(memory_bytes=64 * MEGABYTE, disk_bytes=16 * MEGABYTE, processes=8, open_files=64)
    assert find_excess(usage, policy) == found


def test_measuring_adds_up_the_processes_below_and_counts_shared_memory_once() -> None:
    held = bytearray(b"x" * (40 * MEGABYTE))
    children = []
    reader, writer = os.pipe()
    for _ in range(4):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        children.append(child)
    try:
        # Other children of this process, an xdist worker's say, may be there as well.
        rough = measure(os.getpid(), [], own_mark=None, enough_bytes=2**60)
        exact = measure(os.getpid(), [], own_mark=None, enough_bytes=0)
        assert rough.processes >= 4
        assert rough.memory_bytes >= 4 * len(held)
        assert exact.memory_bytes < rough.memory_bytes - 2 * len(held)
        none = measure(os.getpid(), [], own_mark=-1, enough_bytes=2**60)
        assert (none.processes, none.threads, none.memory_bytes) == (0, 0, 0)
    finally:
        os.close(writer)
        os.close(reader)
        for child in children:
            os.waitpid(child, 0)


class Greedy:
    """Uses too much until it is told."""

    def __init__(self) -> None:
        self.policy = Policy()
        self.busy_since: float | None = None
        self.told: list[Excess] = []
        self.gone = False

    def measure_usage(self) -> Usage | None:
        return None if self.gone else Usage(1, 1000 if not self.told else 1, 0, 0)

    def end_excess(self, excess: Excess, usage: Usage) -> None:
        self.told.append(excess)


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    made = Monitor()
    yield made
    eventually(lambda: not made.runs, "the thread ends when there is nothing left to look at")


def test_the_monitor_ends_an_excess_and_forgets_what_has_gone(monitor: Monitor) -> None:
    greedy, calm = Greedy(), Greedy()
    calm.told.append(Excess("memory", 1, 1))
    monitor.add(greedy)
    monitor.add(calm)
    greedy.busy_since = 0.0
    monitor.notice()
    eventually(lambda: greedy.told != [], "the excess is found")
    assert str(greedy.told[0]) == "it had 1000 processes and threads, and the limit is 68"
    assert len(calm.told) == 1
    calm.gone = True
    monitor.remove(greedy)


class SlowToMeasure(Greedy):
    """Uses little. Measuring it takes half a second in which the thread has no core, as on a busy machine."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[float] = []
        self.ended: list[float] = []

    def measure_usage(self) -> Usage | None:
        self.began.append(time.monotonic())
        time.sleep(0.5)
        self.ended.append(time.monotonic())
        return None if self.gone else Usage(2, 2, 0, 0)


def test_a_busy_machine_does_not_make_measurements_rare(monitor: Monitor) -> None:
    slow = SlowToMeasure()
    slow.busy_since = 0.0
    monitor.add(slow)
    monitor.notice()
    eventually(lambda: len(slow.ended) >= 4, "it is measured four times")
    slow.gone = True
    shortest_pause = min(began - ended for ended, began in zip(slow.ended, slow.began[1:], strict=False))
    assert shortest_pause < 4 * (slow.ended[0] - slow.began[0])


class CannotBeEnded(Greedy):
    """Uses too much. To end that fails."""

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure

    def end_excess(self, excess: Excess, usage: Usage) -> None:
        self.told.append(excess)
        raise self.failure


class CannotBeMeasured(Greedy):
    """Measuring it fails until it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def measure_usage(self) -> Usage | None:
        self.looks += 1
        if self.gone:
            return None
        raise ValueError("a fault of ours")


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.EBADF, "closed"), BlockingIOError(errno.EAGAIN, "full"), SessionLost("closed")],
    ids=["closed", "full", "lost"],
)
def test_an_excess_that_cannot_be_ended_keeps_no_other_sandbox_from_being_watched(
    monitor: Monitor, failure: Exception
) -> None:
    broken, greedy = CannotBeEnded(failure), Greedy()
    monitor.add(broken)
    eventually(lambda: broken.told != [], "the excess is found")
    monitor.add(greedy)
    eventually(lambda: greedy.told != [], "the other's is found, too")
    broken.gone = greedy.gone = True


class Session(Workspace):
    """A session that counts how often it is measured. One that `closes` does so meanwhile."""

    looks = 0
    closes = False

    def measure_usage(self) -> Usage | None:
        self.looks += 1
        if not self.closes:
            return super().measure_usage()
        self.close()
        return Usage(0, 0, 2**60, 0)


def test_a_session_that_is_closed_while_it_is_measured_keeps_no_other_from_being_watched() -> None:
    require_host_root()
    closing = Session(HOST)
    closing.closes = True
    eventually(lambda: not closing.alive, "it is measured, and closed")
    with Session(HOST) as later:
        eventually(lambda: later.looks >= 2, "a later one is measured")


def test_a_fault_while_measuring_is_logged_once_and_watching_goes_on(
    monitor: Monitor, caplog: pytest.LogCaptureFixture
) -> None:
    broken, greedy = CannotBeMeasured(), Greedy()
    with caplog.at_level(logging.ERROR, "envtorch.sandbox.monitor"):
        monitor.add(broken)
        monitor.add(greedy)
        eventually(lambda: broken.looks >= 2 and greedy.told != [], "both are looked at")
    broken.gone = greedy.gone = True
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].exc_info is not None


class DearToMeasure(Greedy):
    """Uses little. Measuring it takes 20 ms of a core."""

    def __init__(self) -> None:
        super().__init__()
        self.spent_s = 0.0
        self.looks = 0

    def measure_usage(self) -> Usage | None:
        began = time.thread_time()
        while time.thread_time() - began < 0.02:
            pass
        self.spent_s += time.thread_time() - began
        self.looks += 1
        return None if self.gone else Usage(2, 2, 0, 0)


def test_sandboxes_that_are_dear_to_measure_leave_the_core_to_others(monitor: Monitor) -> None:
    dear = [DearToMeasure() for _ in range(24)]
    for sandbox in dear:
        monitor.add(sandbox)
    eventually(lambda: dear[-1].looks >= 2, "all have been looked at")
    began, before = time.monotonic(), sum(sandbox.spent_s for sandbox in dear)
    eventually(lambda: all(sandbox.looks >= 5 for sandbox in dear), "each is looked at again")
    share = (sum(sandbox.spent_s for sandbox in dear) - before) / (time.monotonic() - began)
    for sandbox in dear:
        sandbox.gone = True
    assert share < 0.5, "it rests for longer than it works"


class FillsSockets(Greedy):
    """Messages wait in its netlink sockets; a control group counts all else."""

    def __init__(self, waiting: int) -> None:
        super().__init__()
        self.looks = 0
        self.waiting = waiting

    def measure_usage(self) -> Usage | None:
        self.looks += 1
        return None if self.gone else Usage(0, 0, self.waiting, 0)


def test_a_sandbox_with_messages_in_netlink_sockets_is_looked_at_more_often(monitor: Monitor) -> None:
    fills, empty = FillsSockets(1), FillsSockets(0)
    monitor.add(fills)
    monitor.add(empty)
    eventually(lambda: fills.looks > 2 * empty.looks + 4, "it is looked at more than twice as often")
    fills.gone = empty.gone = True
