"""Limits and deadlines: each is an observation or a typed error, and the session goes on."""

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from envtorch.envs.coding_env import CodeAction, CodeObservation, CodingEnv
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.errors import EnvironmentFailed, TimedOut
from envtorch.server import create_app
from tests import patient
from tests.support import PATIENCE_S, Running, running

from .conftest import SMALL

SESSIONS = 12
STUBBORN = """
import time
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""


@pytest.fixture(scope="module")
def server(sandboxes: None) -> Iterator[Running]:
    app = create_app(
        lambda: CodingEnvironment(policy=SMALL), CodeAction, CodeObservation, max_concurrent_envs=SESSIONS + 4
    )
    with running(app) as served:
        yield served


def run(env: CodingEnv, code: str) -> CodeObservation:
    return env.step(CodeAction(code=code)).observation


@pytest.mark.parametrize(
    ("code", "outcome", "words"),
    [
        ("a = b'x' * 10**9", "out of memory", "the limit is 256 MB"),
        ("open('big', 'wb').write(b'x' * 64 * 2**20)", "out of disk", "more than 16 MB to disk"),
        ("print('x' * 10**6)", "output truncated", "cut after 65536 bytes"),
        (
            "import threading as t, time\nfor _ in range(99): t.Thread(target=time.sleep, args=(1,)).start()",
            "out of processes",
            "more than 32 processes",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("out") else "",
)
def test_a_limit_is_an_observation_and_the_state_is_kept(
    env: CodingEnv, code: str, outcome: str, words: str
) -> None:
    run(env, "kept = 'here'")
    result = env.step(CodeAction(code=code))
    assert result.observation.outcome == outcome, result.observation.stderr[-500:]
    assert words in result.observation.stderr
    assert len(result.observation.stdout) <= SMALL.output_bytes
    assert not result.done
    assert run(env, "kept").value == "'here'"


@pytest.mark.parametrize(
    ("code", "code_is"),
    [("import os; os._exit(3)", 3), ("import ctypes; ctypes.string_at(0)", -11)],
    ids=["exit", "segfault"],
)
def test_an_interpreter_that_ends_ends_the_episode_and_not_the_session(
    env: CodingEnv, code: str, code_is: int
) -> None:
    result = env.step(CodeAction(code=code))
    assert (result.observation.outcome, result.observation.exit_code) == ("crashed", code_is)
    assert result.done
    assert "the episode is over" in result.observation.stderr
    assert env.state().last_exit_code == code_is
    with pytest.raises(EnvironmentFailed, match="call reset"):
        run(env, "1")
    env.reset()
    assert run(env, "1").value == "1"


def test_a_step_is_stopped_at_the_callers_deadline_and_its_state_is_kept(server: Running) -> None:
    with CodingEnv(server.url) as env:
        env.reset()
        result = env.step(CodeAction(code="n = 1\nwhile True: pass"), timeout_s=2.0)
        assert result.observation.outcome == "timed out"
        assert "longer than 1 s" in result.observation.stderr
        assert not result.done
        assert run(env, "n").value == "1"


def test_plain_http_keeps_the_deadline_too(server: Running) -> None:
    with patient.Client(base_url=server.url) as http:
        http.post("/reset").raise_for_status()
        body = {"action": {"code": "while True: pass"}, "timeout_s": 2.0}
        seen = http.post("/step", json=body).raise_for_status().json()
        assert seen["observation"]["outcome"] == "timed out"
        http.post("/close").raise_for_status()


def test_code_that_ignores_its_deadline_is_killed(env: CodingEnv) -> None:
    result = env.step(CodeAction(code=STUBBORN), timeout_s=5.0)
    assert result.observation.outcome == "timed out"
    assert result.done
    assert "variables are gone" in result.observation.stderr
    env.reset()
    assert run(env, "1").value == "1"


def test_code_that_outlives_the_callers_deadline_costs_its_episode_and_not_the_session(
    sandboxes: None,
) -> None:
    patient = dataclasses.replace(SMALL, grace_s=3.0)
    app = create_app(lambda: CodingEnvironment(policy=patient), CodeAction, CodeObservation)
    with running(app) as served, CodingEnv(served.url) as env:
        env.reset()
        with pytest.raises(TimedOut) as caught:
            env.step(CodeAction(code=STUBBORN), timeout_s=2.0)  # interrupted after 1 s, with 3 s of grace
        assert caught.value.details["usable"] is True
        with pytest.raises(EnvironmentFailed, match="interpreter is gone"):
            run(env, "1")
        env.reset()
        assert run(env, "1").value == "1"


def test_whenever_a_step_is_taken_back_the_next_one_works(sandboxes: None) -> None:
    async def play() -> None:
        environment = CodingEnvironment(policy=SMALL)
        await environment.reset()
        await environment.step(CodeAction(code="n = 0"))
        for number, delay_s in enumerate((0, 0.0005, 0.002, 0.01, 0.05, 0.2), start=1):
            code = f"n = {number}\nwhile True: pass"
            step = asyncio.create_task(environment.step(CodeAction(code=code)))
            await asyncio.sleep(delay_s)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            kept = await environment.step(CodeAction(code="n"))
            assert kept.value is not None, kept
            assert int(kept.value) <= number
        assert (await environment.step(CodeAction(code="n"))).value != "0"  # one of them had begun
        await environment.close()

    asyncio.run(play())


def test_sessions_are_isolated_and_run_side_by_side(server: Running) -> None:
    together = threading.Barrier(SESSIONS)

    def play(number: int) -> list[str | None]:
        with CodingEnv(server.url, message_timeout_s=PATIENCE_S) as env:
            env.reset()
            run(env, f"mine = {number}\nopen('mine.txt', 'w').write(str(mine))")
            together.wait(timeout=PATIENCE_S)  # every session holds its own value now
            values = [run(env, "mine").value, run(env, "open('mine.txt').read()").value]
            names = run(env, "import os; sorted(os.listdir('.'))").value
            return [*values, names]

    with ThreadPoolExecutor(SESSIONS) as pool:
        played = list(pool.map(play, range(SESSIONS)))
    assert played == [[str(n), repr(str(n)), "['mine.txt']"] for n in range(SESSIONS)]


def test_a_spinning_session_does_not_hold_up_another(server: Running) -> None:
    with CodingEnv(server.url) as busy, CodingEnv(server.url) as other, ThreadPoolExecutor(1) as pool:
        busy.reset()
        other.reset()
        spinning = pool.submit(busy.step, CodeAction(code="while True: pass"), timeout_s=4.0)
        answers = 0
        while not spinning.done():
            answers += run(other, "1").value == "1"
        assert spinning.result().observation.outcome == "timed out"
        assert answers > 1
