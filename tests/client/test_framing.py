"""Frames come out whole, whatever pieces they came in."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from envtorch.client.framing import CHUNK_BYTES, Incoming, Outgoing

SIZES = (0, 1, 125, 126, 127, 65_535, 65_536, 70_000)


def frame(opcode: Opcode, data: bytes, *, fin: bool = True, mask: bool = False) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=mask)


def sorted_out(stream: bytes, cuts: Sequence[int], limit: int = 1 << 20) -> tuple[list[bytes], bytes]:
    """The messages in a stream that arrives in pieces of those sizes, and what is left to the library."""
    incoming = Incoming(limit)
    messages: list[bytes] = []
    others = b""
    sizes = iter(cuts)
    while stream:
        room = incoming.room()
        count = min(next(sizes, len(room)), len(room), len(stream))
        room[:count] = stream[:count]
        stream = stream[count:]
        alone = incoming.alone(count)
        if alone is not None:
            messages.append(alone)
            continue
        for data, is_message in incoming.took(count):
            if is_message:
                messages.append(data)
            else:
                others += data
    return messages, others


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.BINARY])
def test_a_message_of_any_size_is_read(size: int, opcode: Opcode) -> None:
    payload = bytes(n % 251 for n in range(size))
    assert sorted_out(frame(opcode, payload) * 2, []) == ([payload] * 2, b"")


pieces = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([Opcode.TEXT, Opcode.BINARY]), st.binary(max_size=300)),
        st.tuples(st.sampled_from([Opcode.PING, Opcode.PONG]), st.binary(max_size=20)),
        st.tuples(st.just(Opcode.CONT), st.lists(st.binary(max_size=200), min_size=2, max_size=4)),
        st.tuples(st.just(Opcode.BINARY), st.integers(CHUNK_BYTES - 20, CHUNK_BYTES * 2).map(bytes)),
    ),
    max_size=8,
)


@given(pieces, st.lists(st.integers(1, 400), max_size=60))
def test_what_arrives_does_not_depend_on_how_it_was_cut(
    sent: Sequence[tuple[Opcode, bytes | list[bytes]]], cuts: Sequence[int]
) -> None:
    stream, messages, others = b"", [], b""
    for opcode, data in sent:
        if isinstance(data, list):  # one message in fragments, with a ping in between
            several = [
                frame(Opcode.TEXT if place == 0 else Opcode.CONT, part, fin=place == len(data) - 1)
                for place, part in enumerate(data)
            ]
            raw = several[0] + frame(Opcode.PING, b"?") + b"".join(several[1:])
        else:
            raw = frame(opcode, data)
        stream += raw
        if opcode in (Opcode.TEXT, Opcode.BINARY):
            assert isinstance(data, bytes)
            messages.append(data)
        else:
            others += raw
    assert sorted_out(stream, cuts) == (messages, others)


@pytest.mark.parametrize(
    "raw",
    [
        frame(Opcode.TEXT, b"masked", mask=True),
        frame(Opcode.TEXT, b"x" * 101),
        frame(Opcode.BINARY, b"x" * 70_000),
        frame(Opcode.TEXT, b"begun", fin=False) + frame(Opcode.TEXT, b"a message within a message"),
    ],
    ids=["masked", "too long", "much too long", "interleaved"],
)
def test_what_breaks_the_rules_is_left_to_the_library(raw: bytes) -> None:
    after = frame(Opcode.PING, b"still here?")
    assert sorted_out(raw + after, [3, 5], limit=100) == ([], raw + after)


@given(st.binary(max_size=70_000), st.booleans())
def test_a_server_reads_what_is_written(payload: bytes, binary: bool) -> None:
    server = ServerProtocol(state=State.OPEN, max_size=None)
    outgoing = Outgoing()
    server.receive_data(outgoing.binary(payload) if binary else outgoing.text(payload))
    [received] = server.events_received()
    assert isinstance(received, Frame)
    assert received.opcode is (Opcode.BINARY if binary else Opcode.TEXT)
    assert bytes(received.data) == payload
    assert server.parser_exc is None


def test_no_mask_is_used_twice_in_a_row() -> None:
    outgoing = Outgoing()
    keys = [outgoing.text(b"")[2:6] for _ in range(2_000)]
    assert len(set(keys)) > 1_990
