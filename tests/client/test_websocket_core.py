"""Bytes in, messages out: the same messages, whichever way the bytes are divided."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from envtorch.client.client_options import ClientOptions
from envtorch.client.websocket_core import SHORT_BYTES, WebSocketCore, short_frame, whole_message
from envtorch.errors import ConnectFailed

MOST_BYTES = 70_000


def opened(divided_at: int | None = None) -> WebSocketCore:
    """A core after its handshake, whose answer came in one piece or was divided."""
    core = WebSocketCore(ClientOptions(base_url="http://127.0.0.1:1", max_message_bytes=MOST_BYTES))
    server = ServerProtocol()
    server.receive_data(core.start())
    (request,) = server.events_received()
    assert isinstance(request, Request)
    server.send_response(server.accept(request))
    answer = b"".join(server.data_to_send())
    for part in (answer,) if divided_at is None else (answer[:divided_at], answer[divided_at:]):
        core.receive(part)
    core.require_open()
    return core


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=False)


def message(data: bytes, parts: int) -> list[bytes]:
    """One message as its frames."""
    cuts = [len(data) * n // parts for n in range(parts + 1)]
    pieces = [data[a:b] for a, b in pairwise(cuts)]
    kinds = [Opcode.BINARY] + [Opcode.CONT] * (parts - 1)
    return [
        frame(piece, kind, fin=n == parts - 1)
        for n, (piece, kind) in enumerate(zip(pieces, kinds, strict=True))
    ]


SIZES = st.sampled_from([0, 1, 2, 5, 125, 126, 127, 300, 65_535, 65_536])
MESSAGES = st.lists(st.tuples(SIZES, st.integers(1, 3), st.booleans()), max_size=5)


@given(MESSAGES, st.lists(st.integers(0, 200_000), max_size=6), st.booleans())
def test_messages_do_not_depend_on_how_their_bytes_arrive(
    sent: Sequence[tuple[int, int, bool]], cuts: Sequence[int], is_divided: bool
) -> None:
    core = opened(40 if is_divided else None)
    expected, frames = [], []
    for number, (size, parts, has_ping) in enumerate(sent):
        data = bytes([number]) * size
        expected.append(data)
        frames += message(data, parts)
        frames += [frame(b"?", Opcode.PING)] if has_ping else []
    stream = b"".join(frames)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    answers = b"".join(core.receive(stream[a:b]) for a, b in pairwise(places))
    assert list(core.messages) == expected
    assert (answers != b"") is any(has_ping for _, _, has_ping in sent), "pings are answered"


@given(MESSAGES)
def test_messages_that_come_frame_by_frame_are_the_same(sent: Sequence[tuple[int, int, bool]]) -> None:
    core = opened()
    expected = []
    for number, (size, parts, has_ping) in enumerate(sent):
        expected.append(bytes([number]) * size)
        for each in message(expected[-1], parts):
            core.receive(each)
        if has_ping:
            assert core.receive(frame(b"?", Opcode.PING)), "a ping is answered"
    assert list(core.messages) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x81",
        b"\x81\x05abc",
        b"\x81\x7e\x00\x05abc",
        b"\x81\x03abc\x81\x01d",
        b"\x01\x03abc",
        b"\x80\x03abc",
        b"\x89\x01?",
        b"\x88\x02\x03\xe8",
        b"\xc1\x03abc",
        b"\x81\x83\0\0\0\0abc",
        frame(b"x" * (MOST_BYTES + 1)),
    ],
)
def test_what_is_not_one_whole_message_is_left_to_the_library(data: bytes) -> None:
    assert whole_message(data, MOST_BYTES) is None


@given(st.binary(max_size=SHORT_BYTES), st.binary(min_size=4, max_size=4), st.booleans())
def test_a_short_frame_is_what_the_library_reads(data: bytes, mask: bytes, is_binary: bool) -> None:
    _check_read(short_frame(data, mask, is_binary=is_binary), data, is_binary=is_binary)


@pytest.mark.parametrize("size", [0, 125, 126, SHORT_BYTES, SHORT_BYTES + 1])
def test_a_message_of_any_size_is_what_the_library_reads(size: int) -> None:
    core = opened()
    for is_binary in (False, True):
        _check_read(core.encode(b"x" * size, is_binary=is_binary), b"x" * size, is_binary=is_binary)


def _check_read(sent: bytes, data: bytes, *, is_binary: bool) -> None:
    server = ServerProtocol(state=State.OPEN)
    server.receive_data(sent)
    (event,) = server.events_received()
    assert isinstance(event, Frame)
    kind = Opcode.BINARY if is_binary else Opcode.TEXT
    assert (event.opcode, event.fin, bytes(event.data)) == (kind, True, data)


def test_a_message_that_is_too_large_ends_the_connection() -> None:
    core = opened()
    closing = core.receive(frame(b"x" * (MOST_BYTES + 1)))
    assert closing
    assert core.is_closed
    assert core.cut().code == 1009


@pytest.mark.parametrize(("status", "is_brief"), [(404, False), (403, False), (503, True), (429, True)])
def test_only_a_status_that_may_pass_is_tried_again(status: int, is_brief: bool) -> None:
    core = WebSocketCore(ClientOptions(base_url="http://127.0.0.1:1"))
    core.start()
    core.receive(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
    with pytest.raises(ConnectFailed, match=str(status)) as caught:
        core.require_open()
    assert (caught.value.details["was_cut"], caught.value.details["is_final"]) == (is_brief, not is_brief)


def test_nothing_is_taken_after_the_server_closed() -> None:
    core = opened()
    core.receive(frame(b"\x03\xe8", Opcode.CLOSE))
    core.receive(frame(b"late"))
    assert not core.messages
    assert core.cut().code == 1000


def test_a_whole_message_in_the_middle_of_another_is_an_error() -> None:
    core = opened()
    core.receive(frame(b"begun", fin=False))
    core.receive(frame(b"other"))
    assert core.is_closed
    assert not core.messages
