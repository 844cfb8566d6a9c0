"""`check_env` finds each planted fault, and leaves what is in order alone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.env import Environment
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.errors import ConfigurationError, EnvironmentFailed
from envtorch.protocol.encoding import encode_observation
from envtorch.testing import Severity, check_env
from envtorch.testing.sampling import sample
from envtorch.types import State
from tests.checking import faults

ACTIONS = [{"by": number} for number in (1, 2, 3)]


@pytest.fixture(autouse=True)
def clean_up() -> Iterator[None]:
    """Some faults really leave something behind."""
    yield
    for stop in faults.LEFT:
        stop.set()
    for opened in faults.OPEN:
        opened.close()
    faults.LEFT.clear()
    faults.OPEN.clear()


PLANTED = [
    (faults.GivesNothing, "contract", "reset gives nothing"),
    (faults.CannotTravel, "serialisability", "field 'at'"),
    (faults.NotANumber, "rewards", "reward nan"),
    (faults.TooMuch, "rewards", "reward 12, outside of 0 to 1"),
    (faults.CountsOn, "episodes", "after a second reset state.step_count is"),
    (faults.SharesItsList, "values", "an observation changed"),
    (faults.ChangesTheAction, "values", "changes the action"),
    (faults.IgnoresTheSeed, "determinism", "two fresh environments"),
    (faults.SharedByAll, "isolation", "another environment is played beside it"),
    (faults.MovesTheProcess, "process", "the working directory"),
    (faults.LeavesThreads, "leaks", "3 threads are left"),
    (faults.LeavesSockets, "leaks", "open files or sockets are left"),
    (faults.CannotClose, "contract", "it is stuck"),
    (faults.Crashes, "contract", "division by zero"),
    (faults.TogetherInTheWrongOrder, "together", "answers otherwise than step at step 1"),
    (faults.TogetherOtherwise, "together", "answers otherwise than step at step 1"),
    (faults.TogetherTooFew, "together", "column 'at' has 1 values"),
    (faults.TogetherUncounted, "together", "the state differs"),
]


@pytest.mark.parametrize(
    ("fault", "words"),
    [(faults.TogetherOnThread, "on the event loop"), (faults.TogetherByMistake, "no classmethod")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_step_many_that_nobody_calls_is_warned_of(fault: type[faults.Sound], words: str) -> None:
    report = check_env(fault, actions=ACTIONS, reward_range=(0, 1))
    assert report.ok
    assert any(finding.check == "together" and words in finding.message for finding in report.findings)


def test_a_message_names_the_method_that_returned_the_wrong_thing() -> None:
    report = check_env(faults.GivesTheWrongThings, actions=ACTIONS)
    told = str(report)
    assert "reset gives nothing" in told
    assert "step gives a tuple" in told
    assert "step returned nothing" not in told
    with pytest.raises(EnvironmentFailed, match=r"reset returned nothing \(None\); it must return Seen"):
        encode_observation(None, method="reset", expected=faults.Seen)


@pytest.mark.parametrize("kind", [faults.Together, faults.TogetherAwaited])
def test_environments_that_step_together_are_in_order(kind: type[faults.Sound]) -> None:
    report = check_env(kind, actions=ACTIONS, reward_range=(0, 1))
    assert not [finding for finding in report.findings if finding.check == "together"], str(report)
    assert "together" in report.checks


@pytest.mark.parametrize(
    ("fault", "check", "words"), PLANTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_fault_is_found(fault: type[faults.Sound], check: str, words: str) -> None:
    report = check_env(fault, actions=ACTIONS, reward_range=(0, 1))
    found = [finding for finding in report.errors if finding.check == check]
    assert any(words in finding.message for finding in found), str(report)
    assert all(finding.advice for finding in report.findings)
    assert not report.ok
    with pytest.raises(AssertionError, match=check):
        report.raise_if_wrong()


def test_what_several_threads_share_is_found() -> None:
    report = check_env(faults.SharedByAll, actions=ACTIONS)
    assert "threads" in {finding.check for finding in report.errors}, str(report)


@pytest.mark.parametrize("environment", [faults.Sound, EchoEnvironment])
def test_a_sound_environment_passes(environment: type[Environment[Any, Any, Any]]) -> None:
    report = check_env(environment)
    assert report.findings == (), str(report)
    assert str(report).startswith(f"{environment.__name__}: 0 errors, 0 warnings")


def test_an_async_environment_is_checked_too() -> None:
    class Patient(faults.Sound):
        async def reset_async(self, seed: int | None = None, episode_id: str | None = None) -> faults.Seen:
            await asyncio.sleep(0)
            return self.reset(seed, episode_id)

        async def step_async(self, action: faults.Move, *_: Any, **__: Any) -> faults.Seen:
            await asyncio.sleep(0)
            return self.step(action)

    assert check_env(Patient, actions=ACTIONS).findings == ()


def test_an_environment_that_promises_less_is_only_warned() -> None:
    class Alone(faults.SharedByAll):
        SUPPORTS_CONCURRENT_SESSIONS = False

    report = check_env(Alone, actions=ACTIONS)
    assert report.ok
    assert [finding.severity for finding in report.findings] == [Severity.WARNING]


def test_no_seed_and_no_counter_are_warnings() -> None:
    class Plain(Environment[faults.Move, faults.Seen, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self) -> faults.Seen:
            return faults.Seen()

        def step(self, action: faults.Move) -> faults.Seen:
            return faults.Seen()

        @property
        def state(self) -> State:
            return State()

    report = check_env(Plain)
    assert report.ok
    assert {finding.check for finding in report.findings} == {"determinism", "episodes"}


def test_an_instance_cannot_be_checked() -> None:
    with pytest.raises(ConfigurationError, match="pass the class"):
        check_env(EchoEnvironment())


@given(st.randoms(use_true_random=False))
def test_made_up_actions_fit_their_schema(rng: Any) -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "count": {"type": "integer", "minimum": 3, "maximum": 5},
            "share": {"type": "number", "exclusiveMinimum": 0},
            "names": {"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 2},
            "inner": {"$ref": "#/$defs/Inner"},
        },
        "required": ["kind", "count", "share", "names", "inner"],
        "$defs": {"Inner": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}},
    }
    made = sample(schema, rng)
    assert made["kind"] in ("a", "b")
    assert 3 <= made["count"] <= 5
    assert made["share"] > 0
    assert len(made["names"]) == 2
    assert all(len(name) >= 3 for name in made["names"])
    assert isinstance(made["inner"]["on"], bool)


def test_the_working_directory_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_env(faults.MovesTheProcess, actions=ACTIONS)
    check_env(faults.MovesTheProcess)
    assert Path.cwd() == tmp_path
