"""What the sessions on one socket still owe, fed by hand: each is answered once, in any order."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import ClientClosed, InvalidAction, MessageTooLarge, ProtocolError, SessionLost, TimedOut
from envtorch.protocol.channel import Arrived, ChannelPhase
from envtorch.protocol.channels import ClientChannels
from envtorch.protocol.extended import MOST_IN_FRAME, Message, read_frame, write_frame
from envtorch.protocol.formats import JSON, MSGPACK, Format

COUNT = 6
WITHIN: dict[str, Any] = {"deadline": 60.0, "limit_s": 60.0, "timeout_s": None}


def opened(count: int = COUNT, **told: Any) -> ClientChannels:
    """ClientChannels whose sessions are all open."""
    channels = ClientChannels(JSON, count)
    greeting = said(channels.greeting())
    for asked in greeting if isinstance(greeting, list) else [greeting]:
        channels.take(message("session", asked["id"], asked.get("ch", 0), told))
    assert channels.is_ready
    return channels


def said(frame: bytes | None) -> Any:
    assert frame is not None
    return json.loads(frame)


def message(type: str, id: int | None, ch: int, data: Any) -> bytes:
    return JSON.write({"type": type, "id": id, "ch": ch, "data": data})


def error(id: int, ch: int, code: str, text: str = "no") -> bytes:
    return message("error", id, ch, {"message": text, "code": code})


def step(channels: ClientChannels, numbers: list[int], **within: Any) -> int:
    """Ask these for a step; the id of the request."""
    frame = said(channels.steps(numbers, {}, lambda n: b"%d" % n, **(WITHIN | within)))
    id: int = frame["id"]
    return id


def columns(id: int, numbers: list[int]) -> bytes:
    rows = {"ch": numbers, "reward": numbers, "done": [False] * len(numbers), "observation": numbers}
    return message("observations", id, 0, rows)


def alone(id: int, channel: int) -> bytes:
    return message("observation", id, channel, {"reward": channel})


def take(channels: ClientChannels, frame: bytes) -> list[Arrived]:
    channels.take(frame)
    return channels.arrived()


class TestOpening:
    def test_a_repeated_request_to_open_opens_the_same_session(self) -> None:
        channels = ClientChannels(JSON, wait_s=3)
        first = said(channels.greeting())
        channels.disconnected()
        again = said(channels.greeting())
        assert first["type"] == again["type"] == "session"
        assert first["data"] == again["data"]
        channels.take(message("session", again["id"], 0, {}))
        channels.disconnected()
        attach = said(channels.greeting())
        assert (attach["type"], attach["data"]) == ("attach", {"token": first["data"]["token"]})

    def test_tokens_are_long_and_never_the_same(self) -> None:
        tokens = {said(ClientChannels(JSON).greeting())["data"]["token"] for _ in range(50)}
        assert len(tokens) == 50
        assert min(map(len, tokens)) >= 32

    def test_only_the_session_that_is_gone_is_lost(self) -> None:
        channels = opened(3)
        id = step(channels, [0, 1, 2])
        channels.disconnected()
        attaching = said(channels.greeting())
        channels.take(error(attaching[1]["id"], 1, "SESSION_ERROR", "over"))
        for asked in (attaching[0], attaching[2]):
            channels.take(message("session", asked["id"], asked.get("ch", 0), {}))
        [lost] = channels.arrived()
        assert lost.channels == [1]
        assert isinstance(lost.error, SessionLost)
        assert "could not be attached again: over" in lost.error.message
        assert [(one["id"], one.get("ch", 0)) for one in said(channels.resend())] == [(id, 0), (id, 2)]
        assert isinstance(channels.refusal(1), SessionLost)
        assert channels.refusal(0) is None

    def test_a_lost_session_is_replaced_when_it_is_renewed_and_its_channel_closed_first(self) -> None:
        channels = opened(1)
        id = step(channels, [0])
        take(channels, error(id, 0, "SESSION_ERROR"))
        assert channels.phase_of(0) is ChannelPhase.LOST
        channels.renew(0)
        assert [one["type"] for one in said(channels.greeting())] == ["close", "session"]

    def test_a_closed_session_takes_nothing_until_it_is_renewed(self) -> None:
        channels = opened(1)
        channels.closed([0])
        assert isinstance(channels.refusal(0), ClientClosed)
        channels.renew(0)
        assert channels.refusal(0) is None
        assert said(channels.greeting())["type"] == "session"


class TestAsking:
    def test_two_halves_are_two_requests_and_one_acknowledgement(self) -> None:
        channels = opened()
        first, second = step(channels, [0, 1, 2]), step(channels, [3, 4, 5])
        assert (second - first, channels.owed) == (1, COUNT)
        take(channels, columns(second, [3, 4, 5]))
        assert [channels.is_owed(channel) for channel in range(COUNT)] == [True] * 3 + [False] * 3
        take(channels, columns(first, [0, 1, 2]))
        assert channels.owed == 0
        told = said(channels.steps([0], {}, lambda _: b"{}", **WITHIN))
        assert told["ack"] == second, "all that was asked before has arrived"

    def test_what_is_owed_is_sent_again_under_its_id(self) -> None:
        channels = opened()
        first, second = step(channels, [1, 2]), step(channels, [3])
        take(channels, alone(first, 1))
        channels.disconnected()
        for asked in said(channels.greeting()):
            channels.take(message("session", asked["id"], asked.get("ch", 0), {}))
        again = [(one["type"], one["id"], one.get("ch", 0), one["data"]) for one in said(channels.resend())]
        assert again == [("step", first, 2, 2), ("step", second, 3, 3)]
        assert channels.resend() is None, "once for each socket"

    def test_a_message_above_the_servers_limit_is_not_sent_and_both_sizes_are_named(self) -> None:
        channels = opened(1, max_message_bytes=1000)
        with pytest.raises(MessageTooLarge, match=r"above the server's limit of 1,000 bytes") as caught:
            channels.each("step", {0: b'"%b"' % (b"x" * 2000)}, **WITHIN)
        assert caught.value.details["limit"] == 1000
        assert caught.value.details["size"] > 2000
        assert channels.owed == 0
        assert channels.each("step", {0: b'"x"'}, **WITHIN) is not None, "and the session goes on"

    def test_the_callers_deadline_travels(self) -> None:
        told = said(opened(1).each("state", {0: None}, **(WITHIN | {"timeout_s": 2.5})))
        assert told["timeout_s"] == 2.5
        assert "data" not in told


class TestGivingUp:
    def test_a_request_past_its_deadline_is_timed_out_for_each_session_and_cancelled(self) -> None:
        channels = opened(3)
        late = step(channels, [0, 1], deadline=1.0)
        step(channels, [2], deadline=9.0)
        take(channels, alone(late, 0))
        cancels = said(channels.expire(1.0))
        assert [(one["type"], one["ch"], one["data"]) for one in cancels] == [("cancel", 1, {"id": late})]
        [arrived] = channels.arrived()
        assert arrived.channels == [1]
        assert isinstance(arrived.error, TimedOut)
        assert channels.is_owed(2)

    def test_a_late_answer_is_never_the_next_ones(self) -> None:
        channels = opened(3)
        late = step(channels, [0, 1, 2], deadline=1.0)
        channels.expire(1.0)
        channels.arrived()
        now = step(channels, [0, 1])
        assert take(channels, columns(late, [0, 1, 2])) == []
        assert take(channels, alone(late, 0)) == []
        assert [one.channels for one in take(channels, columns(now, [0, 1]))] == [[0, 1]]

    def test_of_columns_that_are_partly_given_up_the_rest_is_taken(self) -> None:
        channels = opened(3)
        id = step(channels, [0, 1, 2])
        channels.give_up([1])
        arrived = take(channels, columns(id, [0, 1, 2]))
        assert [(one.channels, json.loads(bytes(one.payload))["observation"]) for one in arrived] == [
            ([0], 0),
            ([2], 2),
        ]


class TestReading:
    def test_an_answer_that_nobody_asked_for_is_refused(self) -> None:
        channels = opened()
        id = step(channels, [0, 1])
        with pytest.raises(ProtocolError, match="channel 2"):
            channels.take(columns(id, [0, 1, 2]))
        channels = opened()
        id = step(channels, [0, 1])
        channels.take(columns(id, [1]))
        with pytest.raises(ProtocolError, match="channel 1"):
            channels.take(columns(id, [0, 1]))

    def test_an_error_for_the_whole_request_is_no_sessions_own(self) -> None:
        channels = opened()
        frame = said(channels.steps([0, 1], {}, lambda _: b"{}", **WITHIN))
        with pytest.raises(InvalidAction, match="2 channels"):
            channels.take(error(frame["id"], frame["ch"], "VALIDATION_ERROR", "2 channels, but 1 actions"))
        assert channels.owed == 0, "and nobody is waited for"

    def test_draining_is_remembered(self) -> None:
        channels = opened(1)
        step(channels, [0])
        assert take(channels, b'{"type":"draining"}') == []
        assert channels.is_draining

    @given(st.data())
    def test_every_session_is_heard_once_however_its_answer_comes(self, data: Any) -> None:
        channels = opened()
        for _ in range(3):
            cut = data.draw(st.integers(0, COUNT))
            parts = [part for part in (list(range(cut)), list(range(cut, COUNT))) if part]
            frames = []
            for part, id in [(part, step(channels, part)) for part in parts]:
                together = data.draw(st.lists(st.sampled_from(part), unique=True))
                frames += [columns(id, together)] if together else []
                frames += [alone(id, channel) for channel in part if channel not in together]
            heard: list[int] = []
            for frame in data.draw(st.permutations(frames)):
                for arrived in take(channels, frame):
                    heard += arrived.channels
            assert sorted(heard) == list(range(COUNT))
            assert channels.owed == 0


every_format = pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
values = st.dictionaries(
    st.text(alphabet=st.characters(codec="utf-8")), st.integers(-(2**53), 2**53) | st.booleans()
)


@every_format
class TestFrames:
    @given(
        batch=st.lists(st.tuples(st.integers(1, 2**31), st.integers(0, 100), values), min_size=1, max_size=5)
    )
    def test_what_one_side_says_the_other_reads(
        self, format: Format, batch: list[tuple[int, int, Any]]
    ) -> None:
        import msgspec

        messages = [Message("step", id=id, ch=ch, data=msgspec.Raw(format.write(d))) for id, ch, d in batch]
        frame = write_frame(messages, format)
        heard = read_frame(frame, format)
        assert [(m.id, m.ch, format.read(bytes(m.data))) for m in heard] == batch

    @given(frame=st.binary())
    def test_no_bytes_do_anything_but_decode_or_fail_with_our_error(
        self, format: Format, frame: bytes
    ) -> None:
        for read in (lambda: read_frame(frame, format), lambda: ClientChannels(format).take(frame)):
            try:
                read()
            except ProtocolError as failure:
                assert failure.message


@pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
def test_a_frame_holds_so_many_messages_and_no_more(format: Format) -> None:
    most = [Message("state", id=1, ch=0)] * MOST_IN_FRAME
    assert len(read_frame(write_frame(most, format), format)) == MOST_IN_FRAME
    with pytest.raises(ProtocolError, match=f"at most {MOST_IN_FRAME} in one"):
        read_frame(write_frame([*most, most[0]], format), format)


@pytest.mark.parametrize("name", ["a\r\nAuthorization: Bearer x", "", 5, "a b", "a" * 64])
def test_a_replica_whose_name_is_no_name_is_a_protocol_error(name: Any) -> None:
    channels = ClientChannels(JSON)
    channels.greeting()
    told = {"type": "session", "id": 1, "data": {"replica": name}}
    with pytest.raises(ProtocolError, match="which is no name of a replica"):
        channels.take(JSON.write(told))
    assert channels.replica is None


def test_a_request_that_is_late_names_the_limit_of_its_caller() -> None:
    channels = ClientChannels(JSON)
    channels.each("step", {0: b"{}"}, deadline=7.0, limit_s=7.0, timeout_s=2.0)
    channels.expire(7.0)
    [late] = channels.arrived()
    assert "step was not answered within 2 s, and in 5 s more" in str(late.error)


@pytest.mark.parametrize("timeout_s", [2.0, None])
def test_a_request_that_is_late_says_whether_the_server_had_a_deadline_to_keep(
    timeout_s: float | None,
) -> None:
    channels = opened(2)
    channels.each("step", {0: b"{}", 1: b"{}"}, deadline=7.0, limit_s=7.0, timeout_s=timeout_s)
    channels.expire(7.0)
    details = [arrived.error.details for arrived in channels.arrived() if arrived.error is not None]
    assert details == [{"is_connected": True, "is_server_late": timeout_s is not None}] * 2
