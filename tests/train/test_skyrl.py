"""SkyRL's interfaces on our server. Run by `make test-train`."""

import asyncio
import sys
from typing import Any

import pytest

from envtorch.errors import ConfigurationError, SessionLost
from tests.rollout.dials import END, LETTERS
from tests.support import Running, eventually
from tests.train.buttons import ButtonsEnv, buttons, lose
from tests.train.conftest import Report
from tests.train.programs import run_example

pytest.importorskip("skyrl_gym", reason="SkyRL is installed by `make test-train`")

OLDEST_PYTHON = (3, 12)
if sys.version_info < OLDEST_PYTHON:
    pytest.skip("SkyRL 0.3 needs Python 3.12", allow_module_level=True)

from skyrl.train.generators.base import GeneratorInput, TrajectoryID  # noqa: E402

from envtorch.train import SessionGenerator, SessionTextEnv  # noqa: E402

pytestmark = pytest.mark.train


class Engine:
    """Presses what is lit. It may lose every session once, and keep its log-probabilities to itself."""

    def __init__(self, server: Running | None = None, *, has_logprobs: bool = True) -> None:
        self._server = server
        self._has_logprobs = has_logprobs

    async def generate(self, asked: dict[str, Any]) -> dict[str, Any]:
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(lose, server)
        ids = []
        for prompt in asked["prompt_token_ids"]:
            light = LETTERS.text(prompt).removesuffix("<assistant>")[-1]
            ids.append([*LETTERS.encode(f'{{"button": {light}}}'), END])
        logprobs = [[-0.5] * len(one) for one in ids] if self._has_logprobs else None
        return {"response_ids": ids, "response_logprobs": logprobs}


def generate(server: Running, engine: Engine, **options: Any) -> Any:
    rows = [(seed, member) for member in range(3) for seed in range(2)]  # groups need not be adjacent
    batch = GeneratorInput(
        prompts=[[{"role": "user", "content": "Press."}] for _ in rows],
        env_classes=["buttons"] * len(rows),
        env_extras=[{"reset": {"seed": seed}} for seed, _ in rows],
        sampling_params=None,
        trajectory_ids=[TrajectoryID(str(seed), member) for seed, member in rows],
        batch_metadata=None,
    )
    quick = {"client_options": {"reconnect_s": 1.0}, **options}
    generator = SessionGenerator(ButtonsEnv, server.url, engine, template=LETTERS, **quick)
    return asyncio.run(generator.generate(batch))


def test_the_example_runs(report: Report) -> None:
    told = run_example("skyrl_groups")
    assert "rewards [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]" in told
    assert "text environment: reward 1.00" in told
    report("GeneratorInterface, 2 groups of 4; BaseTextEnv", "every reward 1.00")


def test_a_batch_is_played_in_groups_and_rows_are_aligned() -> None:
    with buttons() as server:
        output = generate(server, Engine())
        assert output["rewards"] == pytest.approx([1.0] * 6)
        prompts = output["prompt_token_ids"]
        assert prompts[0] == prompts[2] == prompts[4] != prompts[1], "rows of a group begin in one state"
        for ids, mask, logprobs in zip(
            output["response_ids"], output["loss_masks"], output["rollout_logprobs"], strict=True
        ):
            assert len(ids) == len(mask) == len(logprobs)
            assert {logprob for logprob, said in zip(logprobs, mask, strict=True) if said} == {-0.5}
        assert output["stop_reasons"] == ["done"] * 6
        eventually(lambda: server.sessions.active == 0, "every session is closed")


def test_an_engine_that_tells_no_logprobs_gives_the_trainer_none() -> None:
    with buttons() as server:
        output = generate(server, Engine(has_logprobs=False))
    assert output["rewards"] == pytest.approx([1.0] * 6)
    assert output["rollout_logprobs"] is None


def test_a_lost_row_has_no_say_in_training(report: Report) -> None:
    with buttons() as server:
        assert generate(server, Engine(server))["rewards"] == pytest.approx([1.0] * 6), "played again"
        output = generate(server, Engine(server), attempts=1)
        lost = [place for place, reason in enumerate(output["stop_reasons"]) if reason == "lost"]
        assert lost
        assert output["rollout_metrics"]["envtorch/not_scored"] == len(lost)
        for place in lost:
            assert sum(output["loss_masks"][place]) == 0
            assert len(output["loss_masks"][place]) == len(output["response_ids"][place]) > 0
            group = [reward for row, reward in enumerate(output["rewards"]) if row % 2 == place % 2]
            scored = [
                one for row, one in enumerate(output["rewards"]) if row % 2 == place % 2 and row not in lost
            ]
            if scored:
                assert sum(group) / len(group) == pytest.approx(sum(scored) / len(scored)), "the baseline"
    report("lost rows", "masked, and the group's baseline is unchanged")


def test_a_batch_that_is_lost_altogether_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    batch = GeneratorInput(
        prompts=[[]],
        env_classes=["buttons"],
        env_extras=[None],
        sampling_params=None,
        trajectory_ids=None,
        batch_metadata=None,
    )
    generator = SessionGenerator(ButtonsEnv, "http://127.0.0.1:1", Engine(), template=LETTERS, attempts=1)
    assert asyncio.run(generator.generate(batch))["loss_masks"] == [[0]]
    assert "none of 1 rollouts has a reward: lost" in caplog.text
    assert "127.0.0.1:1" in caplog.text


def test_a_text_environment_raises_what_is_not_the_policys_fault() -> None:
    with buttons() as server:
        extras = {"client": ButtonsEnv, "base_url": server.url, "reset": {"seed": 1}, "max_turns": 2}
        env = SessionTextEnv(extras=extras)
        env.init([])
        lose(server)
        with pytest.raises(SessionLost):
            env.step('{"button": 1}')
        env.close()
        env = SessionTextEnv(extras=extras)
        env.init([])
        assert not env.step('{"button": 1}')["done"]
        last = env.step('{"button": 1}')
        assert (last["done"], last["metadata"]) == (True, {"ending": "max_turns"})
        env.close()
    with pytest.raises(ConfigurationError, match="base_url and client"):
        SessionTextEnv(extras={})


def test_a_text_environment_that_is_called_in_an_event_loop_says_what_to_set() -> None:
    async def begin() -> None:
        SessionTextEnv(extras={"client": ButtonsEnv, "base_url": "http://127.0.0.1:1"}).init([])

    with pytest.raises(ConfigurationError, match="max_env_workers to more than 0"):
        asyncio.run(begin())
