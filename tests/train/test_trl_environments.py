"""`GRPOTrainer(environment_factory=...)`. Run by `make test-train`."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is installed by `make test-train`, in an environment of its own")

import trl
from datasets import Dataset
from transformers.utils import get_json_schema
from trl import GRPOTrainer

from envtorch.errors import Unauthorized
from envtorch.train import TRLEnvironments
from tests.support import Running, eventually
from tests.train.conftest import Report
from tests.train.lamps import Lamp, LampEnv, lamps, lose
from tests.train.tiny_models import make_model, make_tool_tokenizer
from tests.train.trl_lamps import QUICK, settings

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with lamps() as running:
        yield running


def test_an_action_is_a_tool_that_trl_can_describe(server: Running) -> None:
    with TRLEnvironments(LampEnv, server.url) as environments:
        made = environments()
        tools = [
            name
            for name, _ in inspect.getmembers(type(made), inspect.isfunction)
            if not name.startswith("_") and name not in ("reset", "get_reward")
        ]
        assert tools == ["press"]
        described = get_json_schema(made.press)["function"]
    assert described["description"] == "Press the button under a lamp."
    assert described["parameters"]["properties"]["button"]["type"] == "integer"
    assert described["parameters"]["required"] == ["button"]


def test_the_first_reset_of_a_group_forks_for_the_others(server: Running) -> None:
    before = Lamp.resets
    with TRLEnvironments(LampEnv, server.url, group_size=4) as environments:
        group = [environments() for _ in range(4)]
        seen = {one.reset(prompt="x", seed=7) for one in group}
        assert len(seen) == 1
        assert Lamp.resets == before + 1
        lamp = int(seen.pop().removeprefix("lamp"))
        assert group[0].press(button=lamp).startswith("lamp")
        assert [one.get_reward() for one in group] == [0.5, 0.0, 0.0, 0.0]
        group[0].press(button=0)
        with pytest.raises(RuntimeError, match="over"):
            group[0].press(button=0)
        assert {one.reset(prompt="x", seed=8) for one in group}
        assert Lamp.resets == before + 2
    eventually(lambda: not server.sessions.all(), "every session is closed")


def test_trl_calls_the_tools_of_an_environment(server: Running, tmp_path: Path, report: Report) -> None:
    calls = [
        f'<tool_call>\n{{"name": "press", "arguments": {{"button": {n}}}}}\n</tool_call>' for n in range(4)
    ]
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    tokenizer = make_tool_tokenizer(calls, template)
    likely = [*tokenizer.convert_tokens_to_ids(calls), tokenizer.eos_token_id]
    before = Lamp.resets
    with TRLEnvironments(LampEnv, server.url, group_size=4) as environments:
        trainer = GRPOTrainer(
            make_model(tokenizer),
            args=settings(
                tmp_path,
                max_completion_length=64,
                max_tool_calling_iterations=2,
                # A model with random weights says nothing but calls and ends of turns.
                generation_kwargs={"sequence_bias": [[[id], 40.0] for id in likely]},
            ),
            train_dataset=Dataset.from_dict(
                {"prompt": [[{"role": "user", "content": ""}]] * 4, "seed": list(range(4))}
            ),
            processing_class=tokenizer,
            environment_factory=environments,
        )
        trainer.train()
    logged = trainer.state.log_history[:2]
    assert Lamp.resets == before + 4  # two groups in each of two steps
    assert all(0.0 <= row["reward"] <= 1.0 for row in logged)
    assert all(row["tools/call_frequency"] > 0 for row in logged)
    report(
        "GRPOTrainer(environment_factory=...)",
        f"{logged[0]['tools/call_frequency']:.1f} tool calls a rollout, 4 resets for 16 rollouts",
    )


def test_a_lost_session_has_no_reward_through_the_factory(server: Running) -> None:
    with TRLEnvironments(LampEnv, server.url, client_options=QUICK) as environments:
        played = environments()
        played.reset(seed=1)
        lose(server)
        with pytest.raises(Exception, match=r".+"):
            played.press(button=0)
        assert played.get_reward() is None
        with pytest.raises(RuntimeError, match="lost"):
            played.press(button=0)
        failed = environments()
        failed.reset(seed=1)
        with pytest.raises(Exception, match=r".+"):
            failed.press(button=-1)
        assert failed.get_reward() is None
        assert played.reset(seed=1)
        assert played.get_reward() == 0.0


class Expiring(LampEnv):
    """A client whose token has expired after the reset."""

    def step(self, action: Any, **options: Any) -> Any:
        raise Unauthorized("this token has expired")


def test_an_error_that_is_no_ending_of_an_episode_is_raised_and_not_scored(server: Running) -> None:
    with TRLEnvironments(Expiring, server.url) as environments:
        played = environments()
        played.reset(seed=1)
        for _ in range(2):
            with pytest.raises(Unauthorized, match="expired"):
                played.press(button=0)  # TRL tells the model, and nobody else
        with pytest.raises(Unauthorized, match="expired"):
            played.get_reward()
        played.reset(seed=1)
        assert played.get_reward() == 0.0


def test_copies_that_a_smaller_group_leaves_are_no_beginning_of_the_next_one(server: Running) -> None:
    before = Lamp.resets
    with TRLEnvironments(LampEnv, server.url, group_size=4) as environments:
        group = [environments() for _ in range(4)]
        evaluated = [one.reset(prompt=prompt) for one, prompt in zip(group, "xxyy", strict=True)]
        assert evaluated[:2] == evaluated[:1] * 2
        assert evaluated[2:] == evaluated[2:3] * 2
        assert Lamp.resets == before + 2
        trained = [one.reset(prompt="y") for one in group]
        assert trained == trained[:1] * 4
        assert Lamp.resets == before + 3
        eventually(lambda: len(server.sessions.all()) == 4, "no copy is left open")
    eventually(lambda: not server.sessions.all(), "every session is closed")


def test_a_reset_that_finds_no_server_is_a_lost_rollout() -> None:
    nobody = {"wait_s": 0.2, "reconnect_s": 0.1}
    with TRLEnvironments(LampEnv, "http://127.0.0.1:9", attempts=2, client_options=nobody) as environments:
        played = environments()
        assert played.reset(seed=1) == ""
        assert played.get_reward() is None
