"""`AsyncGRPOTrainer(rollout_worker=..., weight_transfer=...)`. Run by `make test-train`."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is installed by `make test-train`, in an environment of its own")

import torch

from envtorch.errors import ConfigurationError, TimedOut
from envtorch.rollout import (
    Completion,
    Ending,
    Prompt,
    Task,
    Tokens,
    Trajectory,
    TrajectoryGroup,
    TransformersTemplate,
    TurnRecord,
)
from envtorch.train import ModelPolicy, TRLRolloutWorker
from envtorch.train.trl_worker import samples_of
from tests.support import PATIENCE_S, Running, eventually
from tests.train.lamps import LampEnv, LampFormat, lamps, lose
from tests.train.tiny_models import make_model
from tests.train.trl_lamps import QUICK, TOKENIZER

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with lamps() as running:
        yield running


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


def test_a_sample_without_logprobs_is_refused_with_what_to_do() -> None:
    tokens = Tokens().given([1]).said([2], None)
    turns = (TurnRecord(1.0, 0.0, 0.0),)
    member = Trajectory(Task({"seed": 1}), 0, Ending.DONE, tokens=tokens, turns=turns)
    with pytest.raises(ConfigurationError, match="give each Completion of the policy its `logprobs`"):
        list(samples_of(TrajectoryGroup(member.task, (member,)), 0, scale=False))
