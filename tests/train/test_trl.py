"""TRL drives the adapters. Run by `make test-train` in an environment that has it."""

import inspect
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is installed by `make test-train`, in an environment of its own")

import torch
import trl
from datasets import Dataset
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from envtorch.errors import ConfigurationError, TimedOut
from envtorch.rollout import Completion, Ending, Prompt, Task, TransformersTemplate
from envtorch.train import ModelPolicy, TRLEnvironments, TRLRollouts, TRLRolloutWorker
from envtorch.train.trl_rollouts import rows_of, runs_of
from tests.support import PATIENCE_S, Running, eventually
from tests.train.conftest import Report
from tests.train.lamps import WORDS, Lamp, LampEnv, LampFormat, lamps, lose
from tests.train.tiny_models import make_model, make_tokenizer, make_tool_tokenizer

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_grpo.py"
TOKENIZER = make_tokenizer(WORDS)
END = TOKENIZER.eos_token_id
QUICK = {"wait_s": 60.0, "reconnect_s": 0.5}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with lamps() as running:
        yield running


def ids(*words: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.convert_tokens_to_ids(list(words)))


def prompt(*words: str) -> Prompt:
    return Prompt((), ids(*words))


def right(prompts: Sequence[Prompt]) -> list[Completion]:
    """A policy that presses the right button."""
    words = [str(given.messages[-1]["content"]).replace("lamp", "press") for given in prompts]
    return [Completion(ids=[*ids(word), END], logprobs=[-0.5, -0.25]) for word in words]


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


def test_a_local_model_is_left_in_the_mode_it_was_in() -> None:
    model = make_model(TOKENIZER).train()
    ModelPolicy(model, TOKENIZER, max_new_tokens=1)([prompt("user")])
    assert model.training


def test_a_local_model_asks_for_a_template_where_there_are_only_messages() -> None:
    with pytest.raises(ConfigurationError, match="template"):
        ModelPolicy(make_model(TOKENIZER), TOKENIZER)([Prompt(({"role": "user", "content": "lamp0"},))])


# GRPOTrainer(rollout_func=...)


def settings(path: Path, **others: Any) -> Any:
    usual = {
        "output_dir": str(path),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "gradient_checkpointing": False,
    }
    return GRPOConfig(**{**usual, **others})


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


def test_the_asynchronous_worker_tells_how_rollouts_ended(server: Running) -> None:
    worker = worker_on(server.url, make_model(TOKENIZER))
    worker.start()
    try:
        told = worker.metrics_queue.get(timeout=PATIENCE_S)
    finally:
        worker.stop()
    endings = [told[f"rollout/ending_{ending}"] for ending in Ending]
    assert {each[1] for each in endings if isinstance(each, tuple)} == {4.0}
    assert sum(each[0] for each in endings if isinstance(each, tuple)) == 4.0


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


# AsyncGRPOTrainer(rollout_worker=..., weight_transfer=...)


def worker_on(server: str, model: Any, **options: Any) -> TRLRolloutWorker:
    usual: dict[str, Any] = {
        "tasks": range(100),
        "group_size": 4,
        "buffer": 8,
        "concurrency": 10,
        "format": LampFormat(),
        "max_turns": 2,
        "template": TransformersTemplate(TOKENIZER),
    }
    return TRLRolloutWorker(
        LampEnv, server, ModelPolicy(model, TOKENIZER, max_new_tokens=1), **{**usual, **options}
    )


def test_samples_carry_the_version_of_the_weights_that_said_them(server: Running) -> None:
    model, other = make_model(TOKENIZER, seed=1), make_model(TOKENIZER, seed=2)
    worker = worker_on(server.url, model)
    worker.weights.pause()  # before it plays there is nothing to hold back
    worker.weights.send_weights(iter(other.named_parameters()))
    worker.weights.resume()
    worker.update_model_version(1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    worker.start()
    try:
        assert worker.rollout_buffer.get(timeout=PATIENCE_S).model_version == 1
        worker.weights.pause()
        worker.weights.send_weights(iter(make_model(TOKENIZER, seed=3).named_parameters()))
        worker.weights.resume()
        worker.update_model_version(2)
        seen: list[int] = []
        while 2 not in seen:
            sample = worker.rollout_buffer.get(timeout=PATIENCE_S)
            seen.append(sample.model_version)
            assert len(sample.input_ids) == len(sample.completion_mask) == len(sample.old_log_probs)
            assert sample.completion_mask[-1] == 1
        worker.check_health(PATIENCE_S)
    finally:
        worker.stop()
    eventually(lambda: not server.sessions.all(), "every session of a stopped worker is closed")


def test_parked_rollouts_ask_the_policy_for_nothing(server: Running) -> None:
    model = make_model(TOKENIZER)
    worker = worker_on(server.url, model, buffer=1000)
    worker.start()
    try:
        worker.rollout_buffer.get(timeout=PATIENCE_S)
        worker.weights.pause()
        model.forward = None  # a call of it would end the worker
        time.sleep(0.2)
        del model.forward
        worker.update_model_version(1)
        while worker.rollout_buffer.get(timeout=PATIENCE_S).model_version < 1:
            worker.check_health(PATIENCE_S)
    finally:
        worker.stop()


def test_lost_members_are_left_out_and_the_rest_of_their_group_is_not(server: Running) -> None:
    worker = worker_on(server.url, make_model(TOKENIZER), attempts=1, client_options=QUICK, buffer=10_000)
    policy, calls = worker._policy, 0

    def unlucky(prompts: Sequence[Prompt]) -> list[Completion]:
        nonlocal calls
        calls += 1
        if calls % 2:
            lose(server, 3)
        return policy(prompts)

    worker._policy = unlucky  # type: ignore[assignment]
    worker.start()
    try:
        told: dict[str, Any] = {"rollout/unscored_total": 0.0}
        while not 0 < told["rollout/unscored_total"] < 4:
            told = worker.metrics_queue.get(timeout=PATIENCE_S)
        given, scored = told["rollout/reward"][1], 4 - told["rollout/unscored_total"]
        worker.metrics_queue.get(timeout=PATIENCE_S)  # the next group: all samples of this one are there
    finally:
        worker.stop()
    assert given == scored
    by_group: dict[int, list[Any]] = {}
    while not worker.rollout_buffer.empty():
        sample = worker.rollout_buffer.get()
        by_group.setdefault(sample.group_id, []).append(sample)
    assert {len(samples) for samples in by_group.values()} & {1, 2, 3}
    for samples in by_group.values():
        assert sum(sample.advantage for sample in samples) == pytest.approx(0.0, abs=1e-4)


def test_a_worker_that_fails_says_so_in_check_health(server: Running) -> None:
    worker = worker_on(server.url, make_model(TOKENIZER))
    worker._policy = None  # type: ignore[assignment]
    worker.start()

    def has_failed() -> bool:
        try:
            worker.check_health(PATIENCE_S)
        except TypeError:
            return True
        return False

    eventually(has_failed, "the worker's error is raised")
    worker.stop()


def test_a_worker_without_samples_says_what_its_rollouts_were_lost_to() -> None:
    nobody = {"wait_s": 0.2, "reconnect_s": 0.1}
    worker = worker_on("http://127.0.0.1:9", make_model(TOKENIZER), attempts=1, client_options=nobody)
    worker.start()
    try:
        eventually(lambda: not worker.metrics_queue.empty(), "a group has ended")
        with pytest.raises(TimedOut, match="lost: ConnectFailed"):
            worker.check_health(0.0)
    finally:
        worker.stop()


def test_weights_of_another_model_are_refused(server: Running) -> None:
    worker = worker_on(server.url, make_model(TOKENIZER))
    with pytest.raises(ConfigurationError, match=r"no parameter 'head\.weight'"):
        worker.weights.send_weights(iter([("head.weight", torch.zeros(1))]))


# GRPOTrainer(environment_factory=...)


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


def test_a_reset_that_finds_no_server_is_a_lost_rollout() -> None:
    nobody = {"wait_s": 0.2, "reconnect_s": 0.1}
    with TRLEnvironments(LampEnv, "http://127.0.0.1:9", attempts=2, client_options=nobody) as environments:
        played = environments()
        assert played.reset(seed=1) == ""
        assert played.get_reward() is None
