"""What an author writes, and what can be read from it."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from envtorch import Action, Environment, EnvSpec, Observation, State, Transform
from envtorch.env import TaskProvider, load_object, type_arguments
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.envs.echo_env.models import EchoAction, EchoObservation, EchoState
from envtorch.errors import ConfigurationError

T = TypeVar("T")


class Base(Environment[T, EchoObservation, EchoState], Generic[T]):
    def reset(self) -> EchoObservation:
        return EchoObservation()

    @property
    def state(self) -> EchoState:
        return EchoState()


class Child(Base[EchoAction]):
    def step(self, action: EchoAction) -> EchoObservation:
        return EchoObservation()


def test_type_arguments_are_found_through_generic_parents() -> None:
    assert type_arguments(Child, Environment) == (EchoAction, EchoObservation, EchoState)
    assert type_arguments(int, Environment) is None


def test_a_spec_is_read_from_the_brackets() -> None:
    spec = EnvSpec.of(EchoEnvironment)
    assert (spec.action, spec.observation, spec.state) == (EchoAction, EchoObservation, EchoState)
    assert spec.name == "EchoEnvironment"


def test_a_spec_is_read_from_annotations_when_there_are_no_brackets() -> None:
    class Plain(Environment):
        def reset(self) -> EchoObservation:
            return EchoObservation()

        def step(self, action: EchoAction) -> EchoObservation:
            return EchoObservation()

        @property
        def state(self) -> EchoState:
            return EchoState()

    spec = EnvSpec.of(Plain)
    assert (spec.action, spec.observation, spec.state) == (EchoAction, EchoObservation, EchoState)


def test_a_spec_that_cannot_be_read_says_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r"Environment\[MyAction, MyObservation, MyState\]"):
        EnvSpec.of(lambda: EchoEnvironment())


def test_what_is_passed_wins() -> None:
    spec = EnvSpec.of(EchoEnvironment, action=Action, observation=Observation, state=State, name="x")
    assert (spec.action, spec.observation, spec.state, spec.name) == (Action, Observation, State, "x")


def test_hooks_work_without_calling_super_init() -> None:
    class Shy(EchoEnvironment):
        def __init__(self) -> None:
            self._state = EchoState()

    environment = Shy()
    observation = EchoObservation(echoed_message="x")
    assert environment._apply_transform(observation) is observation
    assert environment._apply_rubric(EchoAction(message="x"), observation) == 0.0
    environment._reset_rubric()


def test_transform_and_rubric_are_applied() -> None:
    class Shout(Transform[EchoObservation]):
        def __call__(self, observation: EchoObservation) -> EchoObservation:
            return observation.model_copy(update={"echoed_message": observation.echoed_message.upper()})

    @dataclass
    class Length:
        calls: int = 0

        def __call__(self, action: Any, observation: Any, /) -> float:
            self.calls += 1
            return float(len(action.message))

        def reset(self) -> None:
            self.calls = 0

    environment = EchoEnvironment()
    environment.transform, environment.rubric = Shout(), (rubric := Length())
    observation = EchoObservation(echoed_message="x")
    assert environment._apply_transform(observation).echoed_message == "X"
    assert environment._apply_rubric(EchoAction(message="four"), observation) == 4.0
    environment._reset_rubric()
    assert rubric.calls == 0


def test_metadata_names_the_class() -> None:
    metadata = EchoEnvironment().get_metadata()
    assert (metadata.name, metadata.version) == ("EchoEnvironment", "1.0.0")


def test_an_environment_without_tasks_is_no_task_provider() -> None:
    assert not isinstance(EchoEnvironment(), TaskProvider)


class TestLoadObject:
    def test_finds_what_is_there(self) -> None:
        assert load_object("envtorch.envs.echo_env.environment:EchoEnvironment") is EchoEnvironment

    @pytest.mark.parametrize(
        ("path", "complaint"),
        [
            ("nowhere", "write it as"),
            ("no.such.module:thing", "no module"),
            ("envtorch.env:nothing", "has no 'nothing'"),
        ],
    )
    def test_says_what_is_not(self, path: str, complaint: str) -> None:
        with pytest.raises(ConfigurationError, match=complaint):
            load_object(path)
