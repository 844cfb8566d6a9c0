"""What the sessions of a vector still owe, fed by hand: every session is answered once, in any order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import InvalidAction, ProtocolError
from envtorch.protocol.formats import JSON
from envtorch.protocol.vector import VectorSessions

COUNT = 6


def vector() -> VectorSessions:
    return VectorSessions(JSON, COUNT, wait_s=0)


def ask(sessions: VectorSessions, channels: list[int]) -> int:
    """Ask these for a step; the id of the request."""
    frame = JSON.read(sessions.steps(channels, {}, lambda _: b"{}"))
    id: int = frame["id"]
    return id


def columns(id: int, channels: list[int]) -> bytes:
    data = {"ch": channels, "reward": channels, "done": [False] * len(channels), "observation": []}
    return JSON.write({"type": "observations", "id": id, "data": data})


def alone(id: int, channel: int) -> bytes:
    return JSON.write({"type": "observation", "id": id, "ch": channel, "data": {"reward": channel}})


def test_two_halves_are_two_requests_and_one_acknowledgement() -> None:
    sessions = vector()
    first, second = ask(sessions, [0, 1, 2]), ask(sessions, [3, 4, 5])
    assert (first, second, sessions.owed) == (1, 2, COUNT)
    sessions.take(columns(second, [3, 4, 5]))
    assert [sessions.is_owed(channel) for channel in range(COUNT)] == [True] * 3 + [False] * 3
    sessions.take(columns(first, [0, 1, 2]))
    assert sessions.owed == 0
    told = JSON.read(sessions.steps([0], {}, lambda _: b"{}"))
    assert told["ack"] == second, "all that came before has arrived"


def test_an_answer_that_nobody_asked_for_is_refused() -> None:
    sessions = vector()
    id = ask(sessions, [0, 1])
    with pytest.raises(ProtocolError, match="channel 2"):
        sessions.take(columns(id, [0, 1, 2]))
    sessions = vector()
    id = ask(sessions, [0, 1])
    sessions.take(columns(id, [1]))
    with pytest.raises(ProtocolError, match="channel 1"):
        sessions.take(columns(id, [0, 1]))


def test_an_error_for_the_whole_request_is_no_sessions_own() -> None:
    sessions = vector()
    frame = JSON.read(sessions.steps([0, 1], {}, lambda _: b"{}"))
    error = {"message": "2 channels, but 1 actions", "code": "VALIDATION_ERROR"}
    with pytest.raises(InvalidAction, match="2 channels"):
        sessions.take(JSON.write({"type": "error", "id": frame["id"], "ch": frame["ch"], "data": error}))
    assert sessions.owed == 0, "and nobody is waited for"


def test_what_is_owed_is_asked_again_under_its_id() -> None:
    sessions = vector()
    sessions.steps([0, 1], {}, lambda channel: b"%d" % (channel + 1))
    sessions.steps([2], {}, lambda channel: b"%d" % (channel + 1))
    sessions.take(alone(1, 0))
    again = sessions.again()
    assert again is not None
    asked = [(one["type"], one["id"], one.get("ch", 0), one["data"]) for one in JSON.read(again)]
    assert asked == [("step", 1, 1, 2), ("step", 2, 2, 3)]


@given(st.data())
def test_every_session_is_heard_once_however_its_answer_comes(data: Any) -> None:
    sessions = vector()
    for _ in range(3):
        cut = data.draw(st.integers(0, COUNT))
        parts = [part for part in (list(range(cut)), list(range(cut, COUNT))) if part]
        frames = []
        for part, id in [(part, ask(sessions, part)) for part in parts]:
            together = data.draw(st.lists(st.sampled_from(part), unique=True))
            frames += [columns(id, together)] if together else []
            frames += [alone(id, channel) for channel in part if channel not in together]
        heard: list[int] = []
        for frame in data.draw(st.permutations(frames)):
            for arrived in sessions.take(frame):
                heard += arrived.channels
        assert sorted(heard) == list(range(COUNT))
        assert sessions.owed == 0
