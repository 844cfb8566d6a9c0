"""Reading /proc: from text that was written down, and of this very process."""

import os
import threading

import pytest

from bench import proc

STAT = "4242 (a (strange) name) S 17 4242 4242 0 -1 4194304 900 0 0 0 310 45 0 0 20 0 3 0 100 1 2 3"


def test_cpu_time_is_found_behind_any_name() -> None:
    assert proc.cpu_ticks(STAT) == 355
    assert proc.parent_of(STAT) == 17


def test_memory_lines_are_found_by_their_whole_name() -> None:
    text = "Pss_Dirty:     4 kB\nPss:          12 kB\n"
    assert proc.kilobytes(text, "Pss") == 12
    with pytest.raises(ValueError, match="no Swap"):
        proc.kilobytes(text, "Swap")


def test_shares_of_machine_time() -> None:
    before = proc.MachineTime.parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 ...")
    after = proc.MachineTime.parse("cpu  150 0 75 850 60 0 5 10 0 0\ncpu0 ...")
    busy, stolen = after.share_since(before)
    assert busy == pytest.approx(90 / 150)
    assert stolen == pytest.approx(10 / 150)


def test_time_spent_waiting_for_a_core_is_the_second_figure() -> None:
    assert proc.waited_seconds("8000000000 1500000000 42\n") == 1.5
    assert proc.waited() >= 0


def test_this_process_is_seen() -> None:
    me = os.getpid()
    assert me in proc.descendants(os.getppid())
    assert proc.cpu_seconds(me) > 0
    assert proc.cpu_seconds(me, family=True) >= proc.cpu_seconds(me) * 0.9
    assert 1 < proc.memory_mb(me) <= proc.resident_mb(me) * 1.1
    assert proc.threads(me) >= threading.active_count()
