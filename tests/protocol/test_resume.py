"""The client's half of a session that outlives its sockets, fed by hand."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import Draining, ProtocolError, SessionLost
from envtorch.protocol.extended import Message, read_answers, read_frame, write_frame
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.protocol.resume import Backoff, Resumable
from envtorch.protocol.wire import Answer, Ask

every_format = pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
data = st.dictionaries(
    st.text(alphabet=st.characters(codec="utf-8")), st.integers(-(2**53), 2**53) | st.booleans()
)


def said(frame: bytes) -> Any:
    return json.loads(frame)


class TestGreeting:
    def test_first_asks_for_a_session_and_later_for_the_same_one(self) -> None:
        session = Resumable(JSON, wait_s=3)
        first = said(session.greeting()[1])
        again = said(session.greeting()[1])
        assert first["type"] == again["type"] == "session"
        assert first["data"] == again["data"], "asking twice opens one"
        session.greeted(Answer("session"))
        attach = said(session.greeting()[1])
        assert (attach["type"], attach["data"]) == ("attach", {"token": first["data"]["token"]})

    def test_a_session_that_is_gone_is_lost(self) -> None:
        session = Resumable(JSON)
        with pytest.raises(SessionLost, match="could not be taken up again: over"):
            session.greeted(Answer("error", {"code": "SESSION_ERROR", "message": "over"}))

    def test_tokens_are_long_and_never_the_same(self) -> None:
        tokens = {said(Resumable(JSON).greeting()[1])["data"]["token"] for _ in range(50)}
        assert len(tokens) == 50
        assert min(map(len, tokens)) >= 32


class TestRequests:
    def test_have_growing_ids_and_acknowledge_what_arrived(self) -> None:
        session = Resumable(JSON)
        one, frame_one = session.request(Ask("state"), None)
        assert "ack" not in said(frame_one)
        assert session.find(one, b'{"type":"state","id":%d,"data":{}}' % one) is not None
        two, frame_two = session.request(Ask("state"), 2.5)
        assert two > one
        assert (said(frame_two)["ack"], said(frame_two)["timeout_s"]) == (one, 2.5)

    def test_a_late_answer_to_another_request_is_passed_over(self) -> None:
        session = Resumable(JSON)
        late, _ = session.request(Ask("state"), None)
        now, _ = session.request(Ask("state"), None)
        assert session.find(now, b'{"type":"state","id":%d,"data":{"late":1}}' % late) is None
        batch = b'[{"type":"state","id":%d,"data":{}},{"type":"state","id":%d,"data":{"n":1}}]' % (late, now)
        found = session.find(now, batch)
        assert found is not None
        assert found.data == {"n": 1}

    def test_draining_is_remembered(self) -> None:
        session = Resumable(JSON)
        id, _ = session.request(Ask("state"), None)
        assert session.find(id, b'{"type":"draining"}') is None
        assert isinstance(session.gone("refused"), Draining)

    def test_without_it_a_lost_line_is_a_lost_session(self) -> None:
        assert isinstance(Resumable(JSON).gone("reset by peer"), SessionLost)


@every_format
class TestFrames:
    @given(
        batch=st.lists(st.tuples(st.integers(1, 2**31), st.integers(0, 100), data), min_size=1, max_size=5)
    )
    def test_what_one_side_says_the_other_reads(
        self, format: Format, batch: list[tuple[int, int, Any]]
    ) -> None:
        import msgspec

        messages = [Message("step", id=id, ch=ch, data=msgspec.Raw(format.write(d))) for id, ch, d in batch]
        frame = write_frame(messages, format)
        heard = read_frame(frame, format)
        assert [(m.id, m.ch, format.read(bytes(m.data))) for m in heard] == batch
        assert [(a.id, a.ch, a.answer.data) for a in read_answers(frame, format)] == batch

    @given(frame=st.binary())
    def test_no_bytes_do_anything_but_decode_or_fail_with_our_error(
        self, format: Format, frame: bytes
    ) -> None:
        for read in (
            lambda: read_frame(frame, format),
            lambda: read_answers(frame, format),
        ):
            try:
                read()
            except ProtocolError as error:
                assert error.message


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=12, max_size=12))
def test_backing_off_takes_longer_each_time_within_bounds(rolls: list[float]) -> None:
    backoff = Backoff(rolls, first_s=0.1, most_s=2.0)
    for attempt in range(12):
        delay = min(0.1 * 2**attempt, 2.0)
        assert delay / 2 <= backoff.next_s() <= delay
