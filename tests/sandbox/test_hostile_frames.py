"""The owner's event loop belongs to everybody: whatever one sandbox sends, the others are served."""

import asyncio
import subprocess
import sys
import time

import pytest

from envtorch.sandbox import AsyncSandbox, Outcome, Policy, Result, Sandbox
from envtorch.sandbox.protocol import frame
from tests.support import PATIENCE_S, cpu_s

HOSTILE = """
import gc, os, socket, stat
from guest import guest_wire as wire
gc.unfreeze()
[interpreter] = [o for o in gc.get_objects() if type(o).__name__ == 'Interpreter']
me = interpreter._current
numbers = [int(name) for name in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{name}')]
[channel] = [n for n in numbers if n > 2 and stat.S_ISSOCK(os.fstat(n).st_mode)]
def send(data):
    while data:
        data = data[os.write(channel, data):]
"""
STRAY = "junk = wire.frame('result', '0' * 16, {'x': [[]] * 1000}) * 100\nwhile True: send(junk)"
TINY = "junk = wire.frame('hello', '0' * 16, {}) * 10_000\nwhile True: send(junk)"
NOISE = "while True: send(os.urandom(100_000))"
CALLS = (
    "junk = wire.frame('call', me, {'call': 1, 'name': 'nothing', 'args': [], 'kwargs': {}}) * 1000\n"
    "while True: send(junk)"
)
LARGE = "data = b'[' + b'[],' * 10_000_000 + b'[]]'\nsend(wire.HEADER.pack(len(data), 2, me.encode()) + data)"
MANY = (
    'data = b\'{"call":1,"name":"f","kwargs":{},"args":[\' + b\'[],\' * 5_000_000 + b\'[]]}\'\n'
    "send(wire.HEADER.pack(len(data), 2, me.encode()) + data)\nimport time; time.sleep(60)"
)


@pytest.mark.parametrize(
    "junk", [STRAY, TINY, NOISE, LARGE, MANY], ids=["stray", "tiny", "noise", "large", "many"]
)
def test_a_sandbox_that_sends_nonsense_is_ended(policy: Policy, junk: str) -> None:
    with Sandbox(policy) as sandbox:
        result = sandbox.run(HOSTILE + junk)
        assert (result.outcome, result.alive) == (Outcome.CRASHED, False)
        assert result.exception is not None
        assert "nonsense" in result.exception.message


@pytest.mark.parametrize("junk", [STRAY, NOISE, CALLS, LARGE], ids=["stray", "noise", "calls", "large"])
def test_neighbours_are_served_while_a_sandbox_sends_junk(policy: Policy, junk: str) -> None:
    async def main() -> tuple[Result, list[Result]]:
        async with AsyncSandbox(policy) as hostile, AsyncSandbox(policy) as neighbour:
            attack = asyncio.ensure_future(hostile.run(HOSTILE + junk, timeout_s=3.0))
            served = [await neighbour.run(f"{number}") for number in range(20)]
            while not attack.done():
                served.append(await neighbour.run("0"))
            return await attack, served

    attack, served = asyncio.run(main())
    assert all(result.ok for result in served)
    assert attack.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT)


OWNER = """
import resource, sys
from envtorch.sandbox import Policy, Sandbox
with Sandbox(Policy()) as sandbox:
    sandbox.run("1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not sandbox.run(sys.stdin.read()).ok
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("junk", [LARGE, MANY, STRAY], ids=["large", "many", "stray"])
def test_junk_takes_little_of_the_owners_memory(junk: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWNER],
        input=HOSTILE + junk,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert int(done.stdout) < 64 * 1024, done.stderr  # kilobytes


FORGED = """
result = dict(
    outcome='ok', exit_status=0, value=None, json=None, exception=None, parsed=True, stdout='', stderr='',
    truncated=False, duration_s=0.0, cpu_s=0.0, memory_bytes=0
)
result.update({})
send(wire.frame('result', me, result))
import time; time.sleep(60)
"""


def test_the_texts_and_times_of_a_forged_result_are_cut(sandbox: Sandbox) -> None:
    long = "'x' * 3_000_000"
    exception = f"dict(type={long}, message={long}, traceback={long})"
    said = FORGED.format(f"value={long}, exception={exception}, duration_s=1e308, cpu_s=1e308")
    began = time.monotonic()
    result = sandbox.run(HOSTILE + said)
    assert result.duration_s <= time.monotonic() - began
    assert result.cpu_s < 1e10
    assert result.value is not None
    assert result.exception is not None
    texts = (result.value, result.exception.type, result.exception.message, result.exception.traceback)
    assert [len(text) for text in texts] == [65539, 65536, 65536, 65536]


@pytest.mark.parametrize("number", ["exit_status=10**30", "exit_status=-1", "memory_bytes=10**4000"])
def test_a_forged_result_with_numbers_that_cannot_be_is_nonsense(sandbox: Sandbox, number: str) -> None:
    result = sandbox.run(HOSTILE + FORGED.format(number))
    assert (result.outcome, result.alive) == (Outcome.CRASHED, False)


def test_code_that_changes_its_clock_is_answered(sandbox: Sandbox) -> None:
    for clock in ("lambda: -1e300", "lambda: 1e300"):
        result = sandbox.run(f"import time; time.perf_counter = {clock}; 1 + 1")
        assert (result.value, result.ok) == ("2", True)
        assert 0 <= result.duration_s < 1e6


def test_too_many_arguments_are_the_callers_mistake_and_the_session_goes_on(sandbox: Sandbox) -> None:
    calls: list[object] = []
    sandbox.expose("tell", calls.append)
    for code in ("tell([''] * 300_000)", "tell('x' * 2**25)"):
        result = sandbox.run(code)
        assert result.exception is not None
        assert result.exception.type == "ValueError"
    assert sandbox.run("tell(['x' * 1000] * 1000); tell('a, b' * 1_000_000)").ok
    assert calls == [["x" * 1000] * 1000, "a, b" * 1_000_000]


def test_a_long_reply_is_sent_without_being_copied_for_each_piece() -> None:
    reply = {"value": "x" * (64 << 20)}
    with Sandbox(Policy(memory_bytes=1 << 30)) as sandbox:
        sandbox.expose("ask", lambda: reply["value"])
        to_encode = cpu_s(lambda: frame(reply))
        assert cpu_s(lambda: sandbox.run("_ = ask()")) < 8 * to_encode


def test_many_calls_in_a_row_are_all_answered(sandbox: Sandbox) -> None:
    sandbox.expose("double", lambda number: 2 * number)
    code = "[double(number) for number in range(100)]"
    assert sandbox.run(code).json() == [2 * number for number in range(100)]
