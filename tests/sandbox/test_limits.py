"""Exceeding a limit is a typed outcome; where it can, the state survives it."""

import pytest

from envtorch.errors import OutOfResources
from envtorch.sandbox import Outcome, Policy, Sandbox

MEGABYTE = 2**20

THREAD_BOMB = """
from threading import Thread, stack_size
from time import sleep
stack_size(2**16)  # so that memory does not run out first
while True: Thread(target=sleep, args=(9,), daemon=True).start()
"""


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("bytearray(2**34)", Outcome.OUT_OF_MEMORY),
        ("import os\nwhile True: os.fork()", Outcome.OUT_OF_PROCESSES),
        (
            THREAD_BOMB,
            Outcome.OUT_OF_PROCESSES,
        ),
        ("open('f', 'wb').write(b'x' * 2**25)", Outcome.OUT_OF_DISK),
        ("for _ in range(3000): print('x' * 1000)", Outcome.OUTPUT_TRUNCATED),
    ],
    ids=["memory", "processes", "threads", "disk", "output"],
)
def test_a_limit_is_a_typed_outcome_and_the_state_survives(
    sandbox: Sandbox, code: str, outcome: Outcome
) -> None:
    sandbox.run("kept = 'yes'")
    result = sandbox.run(code)
    assert result.outcome is outcome
    assert sandbox.run("kept").json() == "yes"


def test_a_command_that_finds_no_room_for_a_process_is_out_of_resources(sandbox: Sandbox) -> None:
    if not sandbox.report().protects("limits"):
        pytest.skip(f"processes are counted by rlimits here: {sandbox.report().protections['limits']}")
    assert sandbox.run(THREAD_BOMB).outcome is Outcome.OUT_OF_PROCESSES
    with pytest.raises(OutOfResources, match="process"):
        sandbox.exec(["true"])
    assert sandbox.run("1").json() == 1


def test_the_disk_limit_holds_for_all_files_together(sandbox: Sandbox) -> None:
    result = sandbox.run("for i in range(100): open(f'f{i}', 'wb').write(b'x' * 2**20)")
    if sandbox.report().protects("disk"):
        assert result.outcome is Outcome.OUT_OF_DISK
        assert sandbox.run("print('can still speak')").stdout == "can still speak\n"


def test_a_timeout_interrupts_and_keeps_the_state(sandbox: Sandbox) -> None:
    result = sandbox.run("x = 0\nwhile True: x += 1", timeout_s=0.3)
    assert result.outcome is Outcome.TIMED_OUT
    assert result.alive
    assert sandbox.run("x > 0").json() is True


def test_code_that_ignores_the_interrupt_is_killed(sandbox: Sandbox) -> None:
    result = sandbox.run("import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass", timeout_s=0.3)
    assert result.outcome is Outcome.TIMED_OUT
    assert not result.alive
    assert not sandbox.alive


def test_time_in_exposed_functions_is_not_the_agents(sandbox: Sandbox) -> None:
    import time

    sandbox.expose("slow", lambda: time.sleep(0.6))
    assert sandbox.run("slow()\n'done'", timeout_s=0.4).json() == "done"


def test_memory_of_all_processes_together_is_limited_where_groups_are() -> None:
    policy = Policy(memory_bytes=64 * 2**20, disk_bytes=2**20, timeout_s=20)
    with Sandbox(policy) as sandbox:
        if not sandbox.report().protects("limits"):
            pytest.skip(f"no control groups here: {sandbox.report().protections['limits']}")
        code = (
            "import os, time\n"
            "for _ in range(8):\n    pid = os.fork()\n    if pid == 0:\n"
            "        x = b'x' * (40 * 2**20)\n        time.sleep(60)\n        os._exit(0)\n"
            "os.WTERMSIG(os.wait()[1])"
        )
        result = sandbox.run(code)
        assert (result.value == "9") or result.outcome is Outcome.OUT_OF_MEMORY


def test_output_is_cut_at_the_limit_and_says_so() -> None:
    with Sandbox(Policy(output_bytes=1024)) as sandbox:
        result = sandbox.run("print('x' * 5000)\n1 / 0")
        assert result.outcome is Outcome.ERROR
        assert result.truncated
        assert len(result.stdout) == 1024


@pytest.mark.parametrize("room", range(0, 4 * MEGABYTE, MEGABYTE // 2))
def test_whatever_is_left_of_memory_is_enough_to_say_that_it_is_used_up(room: int) -> None:
    with Sandbox(Policy(memory_bytes=64 * MEGABYTE + room)) as sandbox:
        result = sandbox.run("x = []\nwhile True: x.append(bytearray(2**22))")
        assert (result.outcome, result.alive) == (Outcome.OUT_OF_MEMORY, True)
        assert sandbox.run("len(x) > 10").value == "True"
