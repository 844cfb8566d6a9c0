"""The client's flows, fed by hand; and the rule that pairs replies with requests."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.client.translation import ask_reset, ask_state, ask_step
from envtorch.envs.echo_env import EchoAction, EchoEnv
from envtorch.errors import CapacityReached, EnvironmentFailed, InvalidAction, ProtocolError
from envtorch.protocol.flow import drive
from envtorch.protocol.requests import Pairing, websocket_url
from envtorch.protocol.wire import Answer, Ask

client = EchoEnv("http://nowhere")


def answering(*replies: dict[str, Any]) -> Any:
    """Stands in for the server: gives these replies, and remembers what was asked."""
    asked: list[Any] = []
    waiting = list(replies)

    def exchange(ask: Ask) -> Answer:
        asked.append(json.loads(ask.frame()))
        return Answer.read(json.dumps(waiting.pop(0)))

    exchange.asked = asked  # type: ignore[attr-defined]
    return exchange


def observation(**fields: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": fields, "reward": 0.5, "done": False}}


def test_reset_sends_its_options() -> None:
    server = answering(observation(echoed_message="hi"))
    result = drive(ask_reset(client, {"seed": 3, "level": [1]}), server)
    assert server.asked == [{"type": "reset", "data": {"seed": 3, "level": [1]}}]
    assert (result.observation.echoed_message, result.observation.reward) == ("hi", 0.5)


def test_step_sends_the_action_itself() -> None:
    server = answering(observation())
    drive(ask_step(client, EchoAction(message="x")), server)
    assert server.asked == [{"type": "step", "data": {"metadata": {}, "message": "x"}}]


def test_state_sends_nothing_more_than_its_type() -> None:
    server = answering({"type": "state", "data": {"episode_id": "e", "step_count": 2}})
    assert drive(ask_state(client), server).step_count == 2
    assert server.asked == [{"type": "state"}]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("EXECUTION_ERROR", EnvironmentFailed),
        ("VALIDATION_ERROR", InvalidAction),
        ("CAPACITY_REACHED", CapacityReached),
    ],
)
def test_an_error_reply_is_raised_as_its_class(code: str, expected: type[Exception]) -> None:
    server = answering({"type": "error", "data": {"message": "well", "code": code, "active_sessions": 2}})
    with pytest.raises(expected, match="well") as caught:
        drive(ask_state(client), server)
    assert caught.value.details == {"active_sessions": 2}  # type: ignore[attr-defined]


def test_a_reply_of_another_type_is_not_taken_for_ours() -> None:
    with pytest.raises(ProtocolError, match="expected a reply of type 'state', got 'observation'"):
        drive(ask_state(client), answering(observation()))


@pytest.mark.parametrize("frame", ["", "[]", "nope", '{"type":1}', '{"type":"state","data":[]}', b"\xff"])
def test_a_reply_that_cannot_be_read_says_so(frame: str | bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        Answer.read(frame)


def test_options_that_cannot_travel_are_named_before_anything_is_sent() -> None:
    server = answering()
    with pytest.raises(InvalidAction, match="field 'gadget' cannot be encoded"):
        drive(ask_reset(client, {"gadget": object()}), server)
    assert server.asked == []


@given(st.lists(st.booleans()))
def test_a_late_reply_is_never_taken_for_the_next_ones(gives_up: list[bool]) -> None:
    """Each call either waits for its reply or gives up; replies arrive in order, whenever they like."""
    pairing, wire = Pairing(), []
    for call, impatient in enumerate(gives_up):
        pairing.asked()
        wire.append(call)
        if impatient:
            continue
        while True:
            reply = wire.pop(0)
            if pairing.answers_the_last():
                break
        assert reply == call


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h:1", "ws://h:1/ws"),
        ("https://h/", "wss://h/ws"),
        ("ws://h:1", "ws://h:1/ws"),
        ("h:8000", "ws://h:8000/ws"),
        ("http://h/prefix/", "ws://h/prefix/ws"),
    ],
)
def test_where_the_socket_is(base: str, url: str) -> None:
    assert websocket_url(base) == url
