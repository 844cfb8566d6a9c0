"""Values to bytes and back, whatever kind of class an author likes."""

import dataclasses
import datetime
import enum
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from envtorch import Action, EnvSpec, Observation, State, StepResult
from envtorch.errors import EnvironmentFailed, InvalidAction, ProtocolError
from envtorch.protocol.codec import Codec
from envtorch.protocol.columns import rows_of
from envtorch.protocol.encoding import encode_observation, encode_value
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.protocol.mcp_result import tool_result
from envtorch.protocol.wire import Answer, observation_reply
from envtorch.tools import CallToolObservation


class ModelAction(Action):
    text: str
    count: int = 1


class ModelObservation(Observation):
    text: str = ""
    data: Any = None


class ModelState(State):
    last: str | None = None


@dataclasses.dataclass
class DerivedAction(Action):
    text: str
    count: int = 1


@dataclasses.dataclass
class DerivedObservation(Observation):
    text: str = ""
    data: Any = None


@dataclasses.dataclass
class DerivedState(State):
    last: str | None = None


@dataclasses.dataclass
class PlainAction:
    text: str
    count: int = 1


@dataclasses.dataclass
class PlainObservation:
    text: str = ""
    data: Any = None
    reward: float | None = None
    done: bool = False


@dataclasses.dataclass
class PlainState:
    episode_id: str | None = None
    step_count: int = 0
    last: str | None = None


class BareAction(BaseModel):
    text: str
    count: int = 1


class BareObservation(BaseModel):
    text: str = ""
    data: Any = None
    reward: float | None = None
    done: bool = False


KINDS: list[EnvSpec[Any, Any, Any]] = [
    EnvSpec(ModelAction, ModelObservation, ModelState, name="models"),
    EnvSpec(DerivedAction, DerivedObservation, DerivedState, name="dataclass subclasses"),
    EnvSpec(PlainAction, PlainObservation, PlainState, name="plain dataclasses"),
    EnvSpec(BareAction, BareObservation, ModelState, name="plain models"),
]
every_kind = pytest.mark.parametrize("spec", KINDS, ids=lambda spec: spec.name)


def over_the_wire(codec: Codec[Any, Any, Any], observation: object) -> StepResult[Any]:
    frame = observation_reply(encode_observation(observation)).frame()
    return codec.decode_result(Answer.read(frame).expect("observation"))


@every_kind
class TestEveryKindOfClass:
    def test_an_action_arrives_as_it_left(self, spec: EnvSpec[Any, Any, Any]) -> None:
        codec = Codec(spec)
        action = spec.action(text="hé", count=3)
        assert codec.decode_action(codec.encode_action(action)) == action

    @given(text=st.text(), count=st.integers(-(2**60), 2**60))
    def test_any_action_arrives_as_it_left(self, spec: EnvSpec[Any, Any, Any], text: str, count: int) -> None:
        codec = Codec(spec)
        try:
            text.encode()
        except UnicodeEncodeError:
            return  # a lone surrogate is not text that can travel
        action = spec.action(text=text, count=count)
        assert codec.decode_action(codec.encode_action(action)) == action

    def test_an_observation_arrives_with_reward_and_done(self, spec: EnvSpec[Any, Any, Any]) -> None:
        result = over_the_wire(Codec(spec), spec.observation(text="x", data=[1, None], reward=0.5, done=True))
        assert result.observation == spec.observation(text="x", data=[1, None], reward=0.5, done=True)
        assert (result.reward, result.done, result.terminated) == (0.5, True, True)

    def test_reward_and_done_are_not_inside_the_observation(self, spec: EnvSpec[Any, Any, Any]) -> None:
        encoded = encode_observation(spec.observation(reward=1.0, done=True))
        assert {"reward", "done"}.isdisjoint(json.loads(encoded.observation))

    def test_a_state_arrives_as_it_left(self, spec: EnvSpec[Any, Any, Any]) -> None:
        codec = Codec(spec)
        state = spec.state(step_count=2, last="x")
        assert codec.decode_state(json.loads(encode_value(state))) == state

    def test_wrong_actions_are_explained(self, spec: EnvSpec[Any, Any, Any]) -> None:
        with pytest.raises(InvalidAction) as caught:
            Codec(spec).decode_action(b'{"count":"many"}')
        assert {error["loc"][-1] for error in caught.value.errors} == {"text", "count"}

    def test_there_is_a_schema_for_each(self, spec: EnvSpec[Any, Any, Any]) -> None:
        schemas = Codec(spec).schemas()
        assert list(schemas) == ["action", "observation", "state", "reset_observation"]
        assert schemas["action"]["required"] == ["text"]


class Colour(enum.Enum):
    RED = "red"


class FakeTensor:
    """What a tensor looks like to us, whatever library it comes from."""

    def tolist(self) -> list[float]:
        return [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.float32(1.5), 1.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        ({"nested": [np.arange(2)]}, {"nested": [[0, 1]]}),
        (np.array([1.0, np.nan]), [1.0, None]),
        (FakeTensor(), [1.0, 2.0]),
        (b"text", "text"),
        ((1, 2), [1, 2]),
        ({3}, [3]),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (Colour.RED, "red"),
        (PlainAction("x"), {"text": "x", "count": 1}),
        (float("inf"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_be_encoded(value: Any, seen: Any) -> None:
    encoded = encode_observation(ModelObservation(data=value))
    assert json.loads(encoded.observation)["data"] == seen


@pytest.mark.parametrize(
    ("data", "field"),
    [(object(), "data"), ({"a": [0, object()]}, "data.a.1"), (b"\xff", "data")],
    ids=["object", "nested", "bytes"],
)
def test_what_cannot_be_encoded_is_named(data: Any, field: str) -> None:
    with pytest.raises(EnvironmentFailed, match=f"field '{field}' cannot be encoded"):
        encode_observation(ModelObservation(data=data))


def test_a_reward_that_is_no_number_is_named() -> None:
    with pytest.raises(EnvironmentFailed, match="'reward' holds str"):
        encode_observation(PlainObservation(reward="high"))  # type: ignore[arg-type]


def test_a_subclass_of_the_declared_class_keeps_its_fields() -> None:
    class Richer(ModelObservation):
        extra: int = 7

    assert json.loads(encode_observation(Richer()).observation)["extra"] == 7


def test_a_dictionary_will_do_as_an_observation() -> None:
    encoded = encode_observation({"text": "x", "reward": 1, "done": True})
    assert (json.loads(encoded.observation), encoded.reward, encoded.done) == ({"text": "x"}, 1, True)


class TestTheEnvelope:
    codec = Codec(KINDS[0])

    def data(self, **fields: Any) -> dict[str, Any]:
        frame = observation_reply(encode_observation(ModelObservation(**fields))).frame()
        data: dict[str, Any] = json.loads(frame)["data"]
        return data

    def test_metadata_is_repeated_outside_only_when_there_is_some(self) -> None:
        assert "metadata" not in self.data()
        assert self.data(metadata={"a": 1})["metadata"] == {"a": 1}
        assert self.data(metadata={"a": 1})["observation"]["metadata"] == {"a": 1}

    def test_terminated_and_truncated_are_there_once_said(self) -> None:
        assert self.data().keys() == {"observation", "reward", "done"}
        data = self.data(truncated=True)
        assert (data["done"], data["terminated"], data["truncated"]) == (True, False, True)
        result = over_the_wire(self.codec, ModelObservation(truncated=True))
        assert (result.done, result.terminated, result.truncated) == (True, False, True)

    def test_an_episode_that_is_done_and_not_truncated_has_terminated(self) -> None:
        data = self.data(done=True, truncated=False)
        assert (data["done"], data["terminated"], data["truncated"]) == (True, True, False)
        data = self.data(truncated=False)
        assert (data["done"], data["terminated"], data["truncated"]) == (False, False, False)

    @pytest.mark.parametrize("kind", ["model", "dataclass", "dictionary"])
    def test_a_field_of_the_authors_own_called_truncated_does_not_end_an_episode(self, kind: str) -> None:
        class Shown(Observation):
            stdout: str = ""
            truncated: bool = False

        @dataclasses.dataclass
        class Plain:
            stdout: str = ""
            truncated: bool = False
            reward: float | None = None
            done: bool = False

        said: dict[str, Any] = {"stdout": "x", "truncated": True}
        made = {"model": Shown(**said), "dataclass": Plain(**said), "dictionary": {**said, "done": False}}
        data = json.loads(observation_reply(encode_observation(made[kind])).frame())["data"]
        assert data.keys() == {"observation", "reward", "done"}, "no key is added"
        assert data["done"] is False
        assert data["observation"]["truncated"] is True
        codec: Codec[Any, Any, Any] = Codec(EnvSpec(ModelAction, Shown, State))
        result = codec.decode_result(data)
        assert (result.done, result.observation.truncated) == (False, True)

    def test_a_reward_that_is_not_a_number_is_null(self) -> None:
        assert self.data(reward=float("nan"))["reward"] is None

    def test_a_reward_that_is_not_a_number_is_a_failure_where_openenv_does_not_decide(self) -> None:
        odd = ModelObservation(reward=float("inf"))
        with pytest.raises(EnvironmentFailed, match="reset gave the reward inf"):
            encode_observation(odd, method="reset", strict=True)
        with pytest.raises(EnvironmentFailed, match="the tool gave the reward nan"):
            tool_result(CallToolObservation(tool_name="weigh", result=1, reward=float("nan")))

    def test_http_says_metadata_always_and_reward_as_float(self) -> None:
        encoded = encode_observation(ModelObservation(reward=True))
        body = json.loads(encoded.http_body())
        assert body["metadata"] is None
        assert body["reward"] == 1.0
        assert b'"reward":1.0' in encoded.http_body()


class TestValidators:
    def test_any_exception_in_a_validator_is_an_invalid_action(self) -> None:
        class Fragile(Action):
            x: int

            @field_validator("x")
            @classmethod
            def breaks(cls, x: int) -> int:
                return x // 0

        codec = Codec(EnvSpec(Fragile, ModelObservation, ModelState))
        with pytest.raises(InvalidAction, match="ZeroDivisionError"):
            codec.decode_action(b'{"x":1}')


def test_a_reply_that_does_not_fit_is_the_servers_fault() -> None:
    with pytest.raises(
        ProtocolError, match=r"observation does not fit \w+ \(.*surprise: .*\): is this client"
    ):
        Codec(KINDS[0]).decode_result({"observation": {"surprise": 1}})


def test_an_array_can_be_read_while_another_thread_loads_numpy_for_the_first_time() -> None:
    program = """
import sys, threading, time
from envtorch.protocol.formats import MSGPACK

assert "numpy" not in sys.modules
loading = threading.Thread(target=lambda: __import__("numpy"))
loading.start()
while "numpy" not in sys.modules:
    time.sleep(0.0001)
print(MSGPACK.read(bytes.fromhex(sys.argv[1])).tolist())
loading.join()
"""
    frame = MSGPACK.write(np.arange(3.0))
    done = subprocess.run([sys.executable, "-c", program, frame.hex()], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[0.0, 1.0, 2.0]\n", "")


class WiderAction(ModelAction):
    more: int = 7


class OpenAction(Action):
    model_config = ConfigDict(extra="allow")

    text: str = ""


@pytest.mark.parametrize("format", [JSON, MSGPACK])
class TestActionsOfOneRequest:
    """Many at once say what each of them says alone."""

    @pytest.mark.parametrize(
        "actions",
        [
            [WiderAction(text="a"), WiderAction(text="b", more=8)],
            [ModelAction(text="a"), WiderAction(text="b")],
            [{"text": "a"}, {"text": "b"}],
        ],
    )
    def test_fields_of_subclasses_travel(self, format: Format, actions: list[Any]) -> None:
        codec: Codec[Any, Any, Any] = Codec(EnvSpec(ModelAction, ModelObservation, ModelState))
        self.require_same(codec, actions, format)

    def test_fields_that_no_class_knows_travel(self, format: Format) -> None:
        codec: Codec[Any, Any, Any] = Codec(EnvSpec(OpenAction, ModelObservation, ModelState))
        self.require_same(
            codec, [OpenAction.model_validate({"text": "a", "extra": 1}), OpenAction(text="b")], format
        )

    def require_same(self, codec: Codec[Any, Any, Any], actions: list[Any], format: Format) -> None:
        alone = [format.read(codec.encode_action(action, format)) for action in actions]
        together = codec.encode_actions(actions, format)
        columns = codec.encode_columns(actions, format)
        assert together is None or format.read(together) == alone
        assert columns is None or rows_of(format.read(columns)) == alone


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    value: int = Field(1, alias="VALUE")


def test_a_model_has_the_same_names_in_both_formats() -> None:
    observation = ModelObservation(data={"inside": Renamed()})
    for format in (JSON, MSGPACK):
        assert format.read(encode_value({"inside": Renamed()}, format)) == {"inside": {"value": 1}}
        encoded = encode_observation(observation, format).observation
        assert format.read(encoded)["data"] == {"inside": {"value": 1}}


class Tensor:
    """As of a library without a buffer that others may read."""

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def tolist(self) -> list[float]:
        return self._values

    def item(self) -> float:
        (value,) = self._values
        return value


@pytest.mark.parametrize("values", [[5.0], [1.0, 2.0]])
def test_a_tensor_is_a_list_in_both_formats(values: list[float]) -> None:
    for format in (JSON, MSGPACK):
        assert format.read(encode_value({"tensor": Tensor(values)}, format)) == {"tensor": values}


def test_an_array_of_records_is_a_list_in_both_formats() -> None:
    records = np.array([(1, 2.5), (3, 4.5)], dtype=[("x", "i4"), ("y", "f4")])
    for format in (JSON, MSGPACK):
        assert format.read(encode_value({"records": records}, format)) == {"records": [[1, 2.5], [3, 4.5]]}
