"""Environments that cannot be built, stepped or served as they are written are told so in one sentence."""

from typing import Any

import pytest

from envtorch.env import Environment
from envtorch.testing import Report, check_env
from envtorch.types import Action, Observation, State
from tests.checking.faults import Move, Seen, Sound

ACTIONS = [{"by": 1}]


class NeedsLevel(Sound):
    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level


class Stateless(Environment[Move, Seen, State]):
    def reset(self, seed: int | None = None) -> Seen:
        return Seen()

    def step(self, action: Move) -> Seen:
        return Seen()


class Stranger:
    def reset(self) -> Seen:
        return Seen()

    def step(self, action: Move) -> Seen:
        return Seen()


class StepOfTwo(Sound):
    def step(self, item: str, count: int) -> Seen:  # type: ignore[override]
        return Seen()


class StepOfNone(Sound):
    def step(self) -> Seen:  # type: ignore[override]
        return Seen()


def needs_level(level: int) -> Sound:
    return NeedsLevel(level)


def checked(source: Any) -> Report:
    return check_env(source, Move, Seen, actions=ACTIONS)


@pytest.mark.parametrize(
    ("source", "message", "advice"),
    [
        (
            NeedsLevel,
            "NeedsLevel cannot be built: __init__ needs 'level'",
            "give it a default, or serve a factory",
        ),
        (needs_level, "needs_level cannot be built: it needs 'level'", "give it a default"),
        (Stateless, "Stateless has no `state` property", "define what is missing"),
        (Stranger, "Stranger is not an Environment", "derive it from envtorch.Environment"),
        (StepOfTwo, "step takes one action; this one takes item, count", "take the action alone"),
        (StepOfNone, "step takes one action; this one takes none", "take the action alone"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_declared_wrongly_is_the_only_finding(source: Any, message: str, advice: str) -> None:
    report = checked(source)
    (finding,) = report.findings
    assert finding.message == message
    assert finding.advice.startswith(advice)
    assert not finding.traceback
    assert "determinism" in report.not_run
    assert str(report).startswith(f"{source.__name__}: 1 error, 0 warnings")


def test_a_factory_with_the_argument_bound_is_in_order() -> None:
    assert checked(lambda: NeedsLevel(3)).ok


class GivesTuples(Sound):
    def step(self, action: Move) -> Seen:
        return super().step(action), 1.0, False  # type: ignore[return-value]


class GivesText(Sound):
    def step(self, action: Move) -> Seen:
        return "moved"  # type: ignore[return-value]


@pytest.mark.parametrize(("source", "given"), [(GivesTuples, "a tuple"), (GivesText, "a str")])
def test_nothing_more_is_checked_after_a_broken_contract(source: type[Sound], given: str) -> None:
    report = checked(source)
    (finding,) = report.findings
    assert finding.message == f"step gives {given}, where an observation was expected"
    assert set(report.not_run.values()) == {"the contract is broken; correct that first"}
    assert report.checks == ("contract",)
    assert not report.notes


class GivesDictionaries(Sound):
    reward = 0.5

    def step(self, action: Move) -> Seen:
        return {"at": super().step(action).at, "reward": self.reward, "done": True}  # type: ignore[return-value]


class GivesInfinity(GivesDictionaries):
    reward = float("inf")


def test_a_dictionary_is_played_as_a_server_plays_it_and_warned_of() -> None:
    report = checked(GivesDictionaries)
    assert report.ok, str(report)
    assert [finding.message for finding in report.findings] == [
        "step gives a dict, which a server sends without comparing it with Seen"
    ]


def test_the_reward_in_a_dictionary_is_checked() -> None:
    assert "rewards" in {finding.check for finding in checked(GivesInfinity).errors}


class WrongField(Sound):
    def step(self, action: Move) -> Seen:
        return Seen.model_validate({"where": 3})


class WrongConstructor(Sound):
    def __init__(self) -> None:
        Observation.model_validate({"where": 3})


@pytest.mark.parametrize("source", [WrongField, WrongConstructor])
def test_the_line_that_is_named_is_the_authors_and_not_a_librarys(source: type[Sound]) -> None:
    (finding,) = checked(source).findings
    assert "test_declared_wrongly.py, line " in finding.message
    assert "pydantic/main.py" not in finding.message
    first = next(line for line in finding.traceback.splitlines() if line.strip().startswith("File "))
    assert "test_declared_wrongly.py" in first


class Swapped(Environment[Seen, Move, State]):
    def reset(self, seed: int | None = None) -> Any:
        return Seen()

    def step(self, action: Any) -> Any:
        return Seen()

    @property
    def state(self) -> State:
        return State()


class Turn(Action):
    to: int = 0


class Heard(Observation):
    text: str = ""


class OtherAction(Sound):
    def step(self, action: Turn) -> Seen:  # type: ignore[override]
        return Seen(at=action.to)


class OtherObservation(Sound):
    def step(self, action: Move) -> Seen:
        return Heard(text="x")  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Swapped, "Seen stands in the place of the action, and is an observation class"),
        (OtherAction, "step takes a Turn, and actions are declared as Move"),
        (
            OtherObservation,
            "step gives a Heard, and observations are declared as Seen: clients read them as that",
        ),
    ],
)
def test_wrong_type_parameters_are_a_broken_contract(source: Any, message: str) -> None:
    report = checked(lambda: source())
    assert [finding.message for finding in report.errors] == [message]
    assert "the contract is broken" in next(iter(report.not_run.values()))


class Wider(Sound):
    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
        super().reset(seed, episode_id)
        return Observation()  # a class above the declared one, as environments of tools return it


def test_a_class_above_or_below_the_declared_one_is_in_order() -> None:
    report = checked(Wider)
    assert "contract" not in {finding.check for finding in report.findings}, str(report)


class TakesAny(Sound):
    def step(self, action: Any) -> Any:
        return super().step(action)


def test_a_step_that_takes_any_action_is_in_order() -> None:
    report = checked(TakesAny)
    assert "contract" not in {finding.check for finding in report.findings}, str(report)
