"""TRL drives the adapters. Run by `make test-train` in an environment that has it."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is installed by `make test-train`, in an environment of its own")

import torch
import trl
from trl import GRPOTrainer

from envtorch.errors import ConfigurationError
from envtorch.rollout import Completion, Ending, Prompt, Task
from envtorch.train import ModelPolicy, TRLRollouts
from envtorch.train.trl_rollouts import rows_of, runs_of
from tests.support import Running
from tests.train.conftest import Report
from tests.train.lamps import LampEnv, LampFormat, lamps, lose
from tests.train.tiny_models import make_model, make_tool_tokenizer
from tests.train.trl_lamps import END, QUICK, TOKENIZER, prompt, right, settings

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_grpo.py"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with lamps() as running:
        yield running


# It learns


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("GRPOTrainer(rollout_func=...)", []),
        ("AsyncGRPOTrainer(rollout_worker=...)", ["--async"]),
        ("rollout_func, 5 % of messages lose server or socket", ["--faults", "0.05"]),
    ],
)
def test_the_reward_rises_from_chance_to_nearly_all(
    what: str, options: list[str], tmp_path: Path, report: Report
) -> None:
    curves = tmp_path / "curves.json"
    subprocess.run([sys.executable, EXAMPLE, *options, "--curves", curves], check=True)
    (run,) = json.loads(curves.read_text()).values()
    lost = f", {run['sockets']} sockets and {run['servers']} servers lost" if "--faults" in options else ""
    report(what, f"reward {run['first']:.2f} -> {run['last']:.2f} in {run['cpu_s']:.0f} CPU s{lost}")
    assert run["first"] < 0.15
    assert run["last"] > 0.8
    assert curves.with_suffix(".png").stat().st_size > 0
    if "--faults" in options:
        assert run["sockets"] > 100
        assert run["servers"] > 1


# OpenEnv's names


def test_trls_harness_worker_imports_from_the_alias(report: Report) -> None:
    code = """
import envtorch.compat.openenv
from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker, TrainableSession, TrainingTrace

class Session:
    def wait_for_completion(self, timeout_s=None): ...
    def fetch_training_trace(self): ...

assert isinstance(Session(), TrainableSession)
assert TrainingTrace.__module__.startswith("envtorch."), TrainingTrace.__module__
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    report("HarnessRolloutWorker, on OpenEnv's names", "imported, its session protocol is met")


@pytest.mark.parametrize(
    ("owner", "what"),
    [
        ("trl", "HarnessRolloutWorker, TRL asks the model"),
        ("session", "HarnessRolloutWorker, the session's agent asks the model"),
    ],
)
def test_trls_harness_worker_trains_on_sessions_of_the_alias(owner: str, what: str, report: Report) -> None:
    command = [sys.executable, "-m", "tests.train.harness_program", owner]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    steps = told["logged"]
    assert len(steps) == 3
    assert all(math.isfinite(step["loss"]) for step in steps)
    assert all(0.0 <= step["rewards/harness_reward"] <= 1.0 for step in steps)
    assert all(1 <= step["rollout/turns_mean"] <= 3 for step in steps)
    assert all(step["batch/trained_tokens_per_step"] >= step["batch/samples_per_step"] for step in steps)
    assert told["updates"] >= 3
    assert told["answered"] >= 24
    report(what, f"3 steps of AsyncGRPOTrainer, {told['answered']} turns played, {told['updates']} updates")


# A local model


def test_a_local_model_tells_the_probability_of_what_it_drew_from_prompts_of_any_length() -> None:
    model = make_model(TOKENIZER)
    prompts = [prompt("user", "lamp0", "press1", "assistant"), prompt("user"), prompt("lamp3", "lamp2")] * 8
    completions = ModelPolicy(model, TOKENIZER, max_new_tokens=6, temperature=0.7)(prompts)
    assert len({len(completion.ids) for completion in completions}) > 1
    for given, completion in zip(prompts, completions, strict=True):
        assert given.ids is not None
        assert completion.logprobs is not None
        whole = [*given.ids, *completion.ids]
        logits = model(input_ids=torch.tensor([whole])).logits[0, len(given.ids) - 1 : -1] / 0.7
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert END not in completion.ids[:-1]
        assert len(completion.ids) == 6 or completion.ids[-1] == END
        assert completion.is_cut == (completion.ids[-1] != END)


@pytest.mark.parametrize("others", [{}, {"pad_token_id": END}])
def test_nothing_that_follows_any_end_of_a_turn_counts_as_said(others: dict[str, Any]) -> None:
    ends = [END, *TOKENIZER.convert_tokens_to_ids(["lamp0", "press0"])]
    policy = ModelPolicy(
        make_model(TOKENIZER),
        TOKENIZER,
        max_new_tokens=8,
        generation={"eos_token_id": ends, "suppress_tokens": [TOKENIZER.pad_token_id], **others},
    )
    completions = policy([prompt("user")] * 32)
    assert {completion.ids[-1] for completion in completions} >= set(ends)
    for completion in completions:
        assert not set(ends).intersection(completion.ids[:-1])
        assert TOKENIZER.pad_token_id not in completion.ids
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.ids)
        assert all(told is not None and math.isfinite(told) for told in completion.logprobs)


@pytest.mark.parametrize("option", ["stop_strings", "stopping_criteria"])
def test_a_local_model_refuses_ends_that_look_like_padding(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}.*eos_token_id"):
        ModelPolicy(make_model(TOKENIZER), TOKENIZER, generation={option: ["</answer>"]})


def test_a_local_model_refuses_to_generate_without_an_end_of_a_turn() -> None:
    with pytest.raises(ConfigurationError, match="nothing ends a turn"):
        ModelPolicy(make_model(TOKENIZER), TOKENIZER, generation={"eos_token_id": None})


def test_a_local_model_is_left_in_the_mode_it_was_in() -> None:
    model = make_model(TOKENIZER).train()
    ModelPolicy(model, TOKENIZER, max_new_tokens=1)([prompt("user")])
    assert model.training


def test_a_local_model_asks_for_a_template_where_there_are_only_messages() -> None:
    with pytest.raises(ConfigurationError, match="template"):
        ModelPolicy(make_model(TOKENIZER), TOKENIZER)([Prompt(({"role": "user", "content": "lamp0"},))])


# GRPOTrainer(rollout_func=...)


def grpo(path: Path, rollouts: TRLRollouts, **others: Any) -> Any:
    return GRPOTrainer(
        make_model(TOKENIZER),
        args=settings(path, **others),
        train_dataset=rollouts.dataset,
        eval_dataset=rollouts.dataset,
        processing_class=TOKENIZER,
        rollout_func=rollouts.rollout_func,
        reward_funcs=rollouts.reward,
    )


def test_a_trainer_learns_from_groups_that_its_own_model_has_played(server: Running, tmp_path: Path) -> None:
    with TRLRollouts(LampEnv, server.url, tasks=range(8), format=LampFormat(), max_turns=2) as rollouts:
        trainer = grpo(tmp_path, rollouts)
        trainer.train()
        assert [member.member for member in rollouts.played] == [0, 1, 2, 3] * 2
        assert len({member.task.id for member in rollouts.played}) == 2
    logged = trainer.state.log_history[0]
    assert math.isfinite(logged["loss"])
    assert logged["rollout/turns"] >= 1
    assert logged["rollout/unscored"] == 0


def test_reward_endings_and_turns_are_in_tensorboard(
    server: Running, tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing import (  # type: ignore[import-not-found]
        event_accumulator,
    )

    logs = tmp_path / "logs"
    options: dict[str, Any] = {"format": LampFormat(), "max_turns": 2, "policy": right}
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(logs))  # where the callback of transformers writes
    with TRLRollouts(LampEnv, server.url, tasks=range(8), **options) as rollouts:
        grpo(tmp_path, rollouts, report_to=["tensorboard"]).train()
    written = event_accumulator.EventAccumulator(str(logs))
    written.Reload()
    last = {
        name: written.Scalars(f"train/{name}")[-1].value
        for name in ("reward", "rollout/turns", *(f"rollout/ending_{ending}" for ending in Ending))
    }
    assert last["reward"] == 1.0
    assert last["rollout/turns"] == 2.0
    assert last["rollout/ending_done"] == 1.0
    assert sum(last[f"rollout/ending_{ending}"] for ending in Ending) == 1.0
    report("report_to=tensorboard", f"reward, turns and {len(Ending)} endings are written")


def test_a_template_that_drops_reasoning_is_replaced_by_trls_version_of_it(
    server: Running, tmp_path: Path
) -> None:
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    tokenizer = make_tool_tokenizer([f"press{number}" for number in range(4)], template)

    def policy(prompts: Sequence[Prompt]) -> list[Completion]:
        said = tokenizer.convert_tokens_to_ids(["press0"])
        return [Completion(ids=[*said, tokenizer.eos_token_id], logprobs=[0.0, 0.0]) for _ in prompts]

    options: dict[str, Any] = {"format": LampFormat(), "max_turns": 2, "policy": policy}
    with TRLRollouts(LampEnv, server.url, tasks=range(8), **options) as rollouts:
        trainer = GRPOTrainer(
            make_model(tokenizer),
            args=settings(tmp_path, max_steps=1),
            train_dataset=rollouts.dataset,
            processing_class=tokenizer,
            rollout_func=rollouts.rollout_func,
            reward_funcs=rollouts.reward,
        )
        trainer.train()
        assert {len(member.turns) for member in rollouts.played} == {2}


def test_what_the_trainer_is_given_is_what_the_policy_said(server: Running, tmp_path: Path) -> None:
    given: dict[str, list[Any]] = {}
    options: dict[str, Any] = {"format": LampFormat(), "max_turns": 2, "policy": right}
    with TRLRollouts(LampEnv, server.url, tasks=range(8), **options) as rollouts:
        trainer = grpo(tmp_path, rollouts, max_steps=1)
        play = trainer.rollout_func
        trainer.rollout_func = lambda prompts, by: given.update(play(prompts, by)) or given
        trainer.train()
    assert given["env_reward"] == [1.0] * 8
    for said, mask, logprobs in zip(
        given["completion_ids"], given["env_mask"], given["logprobs"], strict=True
    ):
        assert mask == [1, 1, *(0,) * (len(mask) - 4), 1, 1]
        assert said[-1] == END
        assert [logprob for logprob, trained in zip(logprobs, mask, strict=True) if trained] == [
            -0.5,
            -0.25,
        ] * 2
    assert trainer.state.log_history[0]["reward"] == 1.0


def test_a_policy_without_logprobs_gives_trl_nan_and_no_certainty(server: Running, tmp_path: Path) -> None:
    def silent(prompts: Sequence[Prompt]) -> list[Completion]:
        return [Completion(ids=completion.ids) for completion in right(prompts)]

    options: dict[str, Any] = {"format": LampFormat(), "max_turns": 2, "policy": silent}
    with TRLRollouts(LampEnv, server.url, tasks=range(8), **options) as rollouts:
        trainer = grpo(tmp_path, rollouts, max_steps=1)
        trainer.train()
        columns = rows_of(rollouts.played, END)
    assert math.isfinite(trainer.state.log_history[0]["loss"])
    for logprobs, mask in zip(columns["logprobs"], columns["env_mask"], strict=True):
        assert [math.isnan(logprob) for logprob in logprobs] == [said == 1 for said in mask]


def test_a_lost_rollout_has_no_reward_and_changes_nothing(server: Running, tmp_path: Path) -> None:
    calls = 0

    def unlucky(prompts: Sequence[Prompt]) -> list[Completion]:
        nonlocal calls
        calls += 1
        if calls == 1:
            lose(server, 3)
        return right(prompts)

    options: dict[str, Any] = {"format": LampFormat(), "max_turns": 2, "policy": unlucky, "attempts": 1}
    with TRLRollouts(LampEnv, server.url, tasks=range(2), client_options=QUICK, **options) as rollouts:
        trainer = grpo(tmp_path, rollouts, max_steps=1)
        trainer.train()
        lost = [member for member in rollouts.played if member.ending is Ending.LOST]
        columns = rows_of(rollouts.played, END)
    assert 0 < len(lost) < 8
    for member, row in zip(rollouts.played, range(8), strict=True):
        if member.reward is None:
            assert columns["completion_ids"][row] == [END]
            assert columns["env_mask"][row] == [0]
            assert columns["env_reward"][row] is None
    logged = trainer.state.log_history[0]
    assert logged["reward"] == 1.0
    assert logged["loss"] == 0.0
    assert logged["rollout/unscored"] == len(lost) / 8


def test_a_batch_that_is_lost_altogether_teaches_nothing_and_ends_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"format": LampFormat(), "policy": right, "attempts": 1}
    nobody = {"wait_s": 0.2, "reconnect_s": 0.1}
    with TRLRollouts(
        LampEnv, "http://127.0.0.1:9", tasks=range(2), client_options=nobody, **options
    ) as rollouts:
        trainer = grpo(tmp_path, rollouts, max_steps=1)
        before = [weight.clone() for weight in trainer.model.parameters()]
        trainer.train()
        after = list(trainer.model.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_evaluation_has_groups_of_its_own_size(server: Running, tmp_path: Path) -> None:
    options: dict[str, Any] = {"format": LampFormat(), "max_turns": 2, "policy": right}
    with TRLRollouts(LampEnv, server.url, tasks=range(4), **options) as rollouts:
        trainer = grpo(tmp_path, rollouts, num_generations_eval=2, per_device_eval_batch_size=4)
        told = trainer.evaluate()
        assert [member.member for member in rollouts.played] == [0, 1] * 2
    assert told["eval_reward"] == 1.0


def test_a_prompt_that_is_no_task_is_refused(server: Running, tmp_path: Path) -> None:
    with TRLRollouts(LampEnv, server.url, tasks=[Task({"seed": 1}, id="one")], policy=right) as rollouts:
        trainer = grpo(tmp_path, rollouts)
        with pytest.raises(ConfigurationError, match="'two' is not the id of a task"):
            rollouts.rollout_func(["one", "two"], trainer)


def test_runs_of_equal_prompts_are_groups_wherever_a_batch_is_cut() -> None:
    assert list(runs_of("aabbbbcc", 4)) == [(0, 2), (2, 4), (6, 2)]
    assert list(runs_of("aaaaaaaab", 4)) == [(0, 4), (4, 4), (8, 1)]
    assert list(runs_of("", 4)) == []
