"""The names that TRL's `HarnessRolloutWorker` imports from OpenEnv, and their shapes."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

import envtorch.compat
from envtorch.compat.harness import LoopOwningSession, ResourceSessionFactory, TrainableSession
from envtorch.compat.harness.training import TrainingTrace, TrainingTurn, training_sampling

TURN: dict[str, Any] = {
    "node_id": "a",
    "prompt_token_ids": [1, 2],
    "completion_token_ids": [3, 4],
    "per_token_logps": [-0.5, -0.25],
    "loss_mask": [0, 0, 1, 0],
    "request": {"messages": []},
}


def test_the_names_are_where_trl_imports_them_from() -> None:
    envtorch.compat.activate()
    try:
        from openenv.core.harness import (  # type: ignore[import-not-found]
            TraceEntry,
            TrainableSession,
            TrainingTrace,
            TrainingTurn,
        )
        from openenv.core.harness.capture.upstream import training_sampling  # type: ignore[import-not-found]
        from openenv.core.harness.training import TrainingTrace as Same  # type: ignore[import-not-found]
    finally:
        envtorch.compat.deactivate()
    assert Same is TrainingTrace
    assert training_sampling({"temperature": 1})["temperature"] == 1.0
    assert {TraceEntry, TrainableSession, TrainingTurn}


def test_a_trace_survives_being_written_as_entries() -> None:
    trace = TrainingTrace(turns=[TrainingTurn(**TURN), TrainingTurn(**{**TURN, "node_id": "b"})])
    entries = trace.to_trace_entries()
    assert entries[0]["metadata"] == {"node_id": "a"}
    assert entries[0]["loss_mask"] == [0, 0, 1, 0]
    read = TrainingTrace.from_entries(entries)
    assert [turn.node_id for turn in read.turns] == ["a", "b"]
    assert read.to_trace_entries() == entries


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss_mask": [0, 0, 1]},
        {"loss_mask": [1, 0, 1, 1]},
        {"loss_mask": [0, 0, 2, 1]},
        {"per_token_logps": [-0.5]},
        {"per_token_logps": [-0.5, 0.5]},
        {"per_token_logps": [-0.5, -math.inf]},
        {"prompt_token_ids": [], "loss_mask": [1, 1]},
        {"completion_token_ids": [3, -4]},
        {"prompt_token_ids": ["1", "2"]},
        {"node_id": ""},
        {"surprise": 1},
    ],
)
def test_a_turn_that_cannot_be_trained_on_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TrainingTurn(**{**TURN, **wrong})


def test_a_trace_has_each_call_once() -> None:
    with pytest.raises(ValidationError, match="node_id"):
        TrainingTrace(turns=[TrainingTurn(**TURN), TrainingTurn(**TURN)])


def test_training_samples_from_the_models_own_distribution() -> None:
    neutral = training_sampling({"temperature": 0.7, "top_k": 0, "top_p": 1.0})
    assert neutral == {
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
    assert training_sampling(None) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"temperature": 0},
        {"temperature": math.inf},
        {"temperature": True},
        {"temperature": "1"},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 50},
        {"temperature": 1.0, "stop": ["x"]},
        [1.0],
    ],
)
def test_sampling_that_narrows_the_choice_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        training_sampling(wrong)


def test_the_protocols_have_openenvs_methods() -> None:
    class Trainable:
        def wait_for_completion(self, timeout_s: float | None = None) -> int:
            return 0

        def fetch_training_trace(self) -> TrainingTrace:
            return TrainingTrace(turns=[])

    class LoopOwning:
        def wait_for_completion(self, timeout_s: float | None = None) -> int:
            return 0

        def fetch_proxy_trace(self) -> list[Any]:
            return []

    assert isinstance(Trainable(), TrainableSession)
    assert not isinstance(Trainable(), LoopOwningSession)
    assert isinstance(LoopOwning(), LoopOwningSession)
    assert not isinstance(LoopOwning(), TrainableSession)
    assert ResourceSessionFactory[Any] is not None  # subclasses may name their session's class
