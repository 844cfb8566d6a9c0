"""Many at once is each by itself: what is read and written in one go is what one by one would give."""

import json
import math
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter, ValidationError

from envtorch import Action, EnvSpec, Observation, State
from envtorch.errors import EnvironmentFailed, InvalidAction, ProtocolError
from envtorch.protocol.batch import pick, write_rows
from envtorch.protocol.codec import Codec
from envtorch.protocol.encoding import Encoded, encode_observation
from envtorch.protocol.formats import JSON, MSGPACK, Format


class Move(Action):
    by: int
    speed: float = 1.0
    name: str | None = None
    share: float = Field(default=0.5, ge=0, le=1)
    path: list[int] = Field(default_factory=list)
    places: dict[str, int] = {"home": 1}


class Seen(Observation):
    text: str = ""
    number: int | float = 0
    note: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class Felt(Observation):
    """Whose values pydantic writes in its own way."""

    text: str = ""
    blob: bytes = b""


codec: Codec[Move, Seen, State] = Codec(EnvSpec(Move, Seen, State, name="moves"))

texts = st.text(max_size=4)
huge = st.integers(2**62, 2**70)
small = st.one_of(st.integers(-5, 5), st.floats(-2, 2), st.booleans(), st.none(), texts)
values = small | huge
reads_huge_as_float = tuple(map(int, pydantic.VERSION.split(".")[:2])) >= (2, 12)
"""Before, pydantic refuses a huge integer for a float in JSON, and takes it in Python."""
moves = st.fixed_dictionaries(
    {"by": values},
    optional={
        "speed": values if reads_huge_as_float else small,
        "name": values,
        "share": values if reads_huge_as_float else small,
        "path": st.lists(values, max_size=2),
        "metadata": st.dictionaries(texts, values, max_size=2),
        "unknown": values,
    },
)


def told(value: BaseModel) -> tuple[Any, ...]:
    """All there is to an object: two that tell the same are the same."""
    own = [(name, type(one), repr(one)) for name, one in value.__dict__.items()]
    extra, private = value.__pydantic_extra__, value.__pydantic_private__
    return type(value), own, value.model_fields_set, extra, private, value.model_dump_json()


def one_by_one(rows: list[Any]) -> list[Move] | None:
    try:
        return [codec.decode_action(json.dumps(row).encode()) for row in rows]
    except InvalidAction:
        return None


@given(st.lists(moves, max_size=4))
def test_actions_are_read_at_once_as_they_are_one_by_one(rows: list[dict[str, Any]]) -> None:
    each, payload = one_by_one(rows), json.dumps(rows).encode()
    at_once = codec.decode_actions(payload)
    assert (at_once is None) == (each is None), "valid together exactly when each of them is"
    if each is not None and at_once is not None:
        assert list(map(told, at_once)) == list(map(told, each))


@given(st.data(), st.integers(1, 4))
def test_actions_in_columns_are_those_in_rows(data: Any, count: int) -> None:
    names = data.draw(st.sets(st.sampled_from(["speed", "name", "share", "path", "metadata"])))
    whole = moves.filter(lambda row: names <= row.keys())
    rows = [
        {name: row[name] for name in ("by", *sorted(names))}
        for row in data.draw(st.lists(whole, min_size=count, max_size=count))
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    each = one_by_one(rows)
    actions = codec.decode_columns(json.dumps(columns).encode(), count)
    assert (actions is None) == (each is None)
    if each is not None and actions is not None:
        assert list(map(told, actions)) == list(map(told, each))
        assert [action.by for action in each] == actions.column("by")


class Private(Action):
    by: int
    _secret: int = PrivateAttr(default=7)


class Open(Action):
    model_config = ConfigDict(extra="allow")
    by: int


class Built(Action):
    by: int

    def __init__(self, **values: Any) -> None:
        super().__init__(**values | {"by": 5})


class Trimmed(Action):
    model_config = ConfigDict(str_strip_whitespace=True)
    by: int
    name: str = ""


class Strict(Action):
    model_config = ConfigDict(strict=True)
    by: int
    speed: float = 1.0


class Checked(Action):
    by: int
    speed: int = Field(default="3", validate_default=True)


@pytest.mark.parametrize("kind", [Private, Open, Built, Trimmed, Strict, Checked])
def test_a_class_with_more_to_say_has_its_say(kind: type[Action]) -> None:
    codec: Codec[Any, Any, Any] = Codec(EnvSpec(kind, Seen, State, name="moves"))
    rows: list[dict[str, Any]] = [{"by": 1}, {"by": 2}]
    if kind is Trimmed:
        rows = [row | {"name": " x "} for row in rows]
    each = [codec.decode_action(json.dumps(row).encode()) for row in rows]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    actions = codec.decode_columns(json.dumps(columns).encode(), 2)
    if actions is not None:
        assert [action.model_dump() for action in actions] == [action.model_dump() for action in each]
        assert [type(action) for action in actions] == [kind, kind]


numbers = st.one_of(st.integers(-5, 5), st.integers(2**62, 2**70), st.floats())
seen = st.builds(
    Seen,
    text=texts,
    number=numbers,
    note=st.none() | texts,
    data=st.just({}) | st.dictionaries(texts, numbers | texts, max_size=2),
    reward=st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2),
    done=st.booleans(),
    metadata=st.just({}) | st.dictionaries(texts, texts, max_size=1),
    terminated=st.none() | st.booleans(),
)


def read(columns: bytes, format: Format) -> list[Seen] | None:
    """What a client makes of columns; None when they do not fit its class."""
    found = format.read(columns)
    try:
        if format is JSON:
            rows = JSON.write(found["observation"])
            return codec.decode_observations(rows, found["reward"], found["done"])
        parts = zip(found["observation"], found["reward"], found["done"], strict=True)
        payloads = [{"observation": row, "reward": reward, "done": done} for row, reward, done in parts]
        return [codec.decode_result(payload).observation for payload in payloads]
    except ProtocolError:
        return None


def alone(observation: Seen, format: Format) -> Any:
    encoded = encode_observation(observation, format)
    try:
        return told(codec.decode_result(format.read(encoded.data())).observation)
    except ProtocolError:
        return None


@given(st.lists(seen, min_size=1, max_size=4), st.sampled_from([JSON, MSGPACK]))
def test_observations_together_are_those_of_each(observations: list[Seen], format: Format) -> None:
    try:
        steps = [encode_observation(one, format) for one in observations]
    except EnvironmentFailed:
        assert format is MSGPACK, "it has no numbers as large as these"
        return
    columns = write_rows(steps, list(range(len(steps))), format)
    together, each = read(columns, format), [alone(one, format) for one in observations]
    if together is None:
        assert None in each, "one of them does not fit"
        return
    assert list(map(told, together)) == each
    assert [pick(columns, place, format).data() for place in range(len(steps))] == [
        format.write(format.read(step.data())) for step in _said_how(steps)
    ]


def _said_how(steps: list[Encoded]) -> list[Encoded]:
    """In columns, a flag that one step has is there for all."""
    if all(step.terminated is None and step.truncated is None for step in steps):
        return steps
    return [
        replace(step, terminated=step.done, truncated=False) if step.terminated is None else step
        for step in steps
    ]


def test_what_no_text_can_say_is_refused() -> None:
    with pytest.raises(EnvironmentFailed, match="surrogates"):
        encode_observation(Seen(text="\ud800"), JSON)


def test_a_reward_is_of_its_own_kind() -> None:
    for reward in (1, True, False, 0, 1.0, 0.5, None, math.inf):
        assert repr(Seen(reward=reward).reward) == repr(reward)
    kinds = TypeAdapter(Observation).json_schema()["properties"]["reward"]["anyOf"]
    assert [kind["type"] for kind in kinds] == ["boolean", "integer", "number", "null"], "as OpenEnv says it"
    with pytest.raises(ValidationError):
        Seen(reward="much")  # type: ignore[arg-type]
