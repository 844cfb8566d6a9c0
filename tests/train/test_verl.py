"""verl's agent loop plays on our server. Run by `make test-train`."""

import asyncio
from typing import Any

import pytest

from envtorch.errors import SessionLost
from tests.support import Running, eventually
from tests.train.buttons import ButtonsEnv, buttons, lose
from tests.train.conftest import Report
from tests.train.programs import run_example

pytest.importorskip("verl", reason="verl is installed by `make test-train`")

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from envtorch.train import EnvTorchLoop
from tests.train.tiny_models import make_tokenizer

pytestmark = pytest.mark.train

TOKENIZER = make_tokenizer(["light:", *map(str, range(10)), *(f'{{"button":{n}}}' for n in range(10))])


class Engine:
    """Presses what is lit. It may lose every session once, and keep its log-probabilities to itself."""

    def __init__(self, server: Running | None = None, *, has_logprobs: bool = True) -> None:
        self._server = server
        self._has_logprobs = has_logprobs

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(lose, server)
        light = TOKENIZER.decode(prompt_ids).split()[-2]
        ids = TOKENIZER.convert_tokens_to_ids([f'{{"button":{light}}}', "<end>"])
        logprobs = [-0.5, -0.25] if self._has_logprobs else None
        return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason="completed")


def play(server: Running, engine: Engine, response_length: int = 64, **options: Any) -> Any:
    lengths = {"prompt_length": 64, "response_length": response_length}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": lengths}, "data": {}})

    async def run() -> Any:
        loop = EnvTorchLoop(
            DictConfigWrap(config),
            engine,
            TOKENIZER,
            None,
            None,
            DictConfigWrap(config.data),
            client=ButtonsEnv,
            base_url=server.url,
            rollout_options={"client_options": {"reconnect_s": 1.0}, **options},
        )
        return await loop.run({}, reset={"seed": 3}, raw_prompt=[])

    return asyncio.run(run())


def test_the_example_runs(report: Report) -> None:
    told = run_example("verl_agent_loop").strip().splitlines()
    assert told[-1] == "16 episodes, mean reward 1.00"
    report("16 agent loops at once, its engine a script", told[-1])


def test_ids_mask_and_logprobs_are_the_engines(report: Report) -> None:
    with buttons() as server:
        output = play(server, Engine())
        assert output.response_mask == [1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]
        said = [
            logprob
            for logprob, mask in zip(output.response_logprobs, output.response_mask, strict=True)
            if mask
        ]
        assert said == [-0.5, -0.25] * 3
        assert len(output.response_ids) == len(output.response_mask)
        assert output.reward_score == pytest.approx(1.0)
        assert output.extra_fields["ending"] == "done"
        cut = play(server, Engine(), response_length=5)
        assert (len(cut.response_ids), cut.response_mask) == (5, [1, 1, 0, 0, 0])
        assert cut.reward_score == pytest.approx(1 / 3), "of the turn that is left"
        assert (cut.extra_fields["was_cut"], output.extra_fields["was_cut"]) == (True, False)
        eventually(lambda: server.sessions.active == 0, "every session is closed")


def test_an_engine_that_tells_no_logprobs_gives_the_trainer_none() -> None:
    with buttons() as server:
        output = play(server, Engine(has_logprobs=False))
    assert output.reward_score == pytest.approx(1.0)
    assert output.response_logprobs is None


def test_a_lost_episode_is_played_again_and_then_raised(report: Report) -> None:
    with buttons() as server:
        assert play(server, Engine(server)).reward_score == pytest.approx(1.0)
        with pytest.raises(SessionLost):
            play(server, Engine(server), attempts=1)
    report("lost episodes", "played again, then raised; never scored")
