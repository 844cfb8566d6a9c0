"""Every byte from a sandbox is hostile: the codec answers with a message or with `Nonsense`."""

import contextlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.sandbox import protocol
from envtorch.sandbox.protocol import Call, Forked, Framer, Hello, Message, Nonsense

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
MESSAGES = st.one_of(
    st.builds(Hello, id=st.text()),
    st.builds(Forked, id=st.text(), error=st.none() | st.text()),
    st.builds(
        Call,
        id=st.text(),
        call=st.integers(0, 2**31),
        name=st.text(),
        args=st.lists(PLAIN, max_size=3),
        kwargs=st.dictionaries(st.text(), PLAIN, max_size=3),
    ),
)


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 64))
def test_what_one_side_says_the_other_reads_however_it_is_cut(said: list[Message], size: int) -> None:
    stream = b"".join(protocol.frame(message) for message in said)
    framer = Framer()
    heard: list[Message] = []
    for start in range(0, len(stream), size):
        framer.feed(stream[start : start + size])
        heard.extend(framer)
    assert heard == said


@given(st.binary(max_size=300))
def test_noise_is_nonsense_or_nothing(noise: bytes) -> None:
    framer = Framer()
    framer.feed(noise)
    with contextlib.suppress(Nonsense):
        list(framer)


@given(PLAIN)
def test_json_of_any_shape_is_nonsense_unless_it_is_a_message(value: object) -> None:
    with pytest.raises(Nonsense):
        protocol.decode(json.dumps({"type": "result", "id": "x", "value": value}).encode())
    with pytest.raises(Nonsense):
        protocol.decode(json.dumps(value).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" * 100_000,
        b'{"type":"hello","id":1}',
        b'{"type":"hello","id":"x","more":1}',
        b'{"type":"hello"}',
        b'{"type":"exec","id":"x"}',
        b'{"id":"x"}',
        b"\xff\xfe",
        b'{"type":"shared","id":"x","error":1' + b"0" * 5000 + b"}",
    ],
)
def test_malformed_messages_are_nonsense(data: bytes) -> None:
    with pytest.raises(Nonsense):
        protocol.decode(data)


def test_a_frame_that_is_too_large_is_refused_before_it_is_read() -> None:
    framer = Framer(limit=10)
    framer.feed(struct.pack(">I", 11))
    with pytest.raises(Nonsense, match="11 bytes"):
        next(framer)


@given(st.binary(max_size=100))
def test_control_packets_of_any_kind_do_not_crash(data: bytes) -> None:
    with contextlib.suppress(Nonsense):
        protocol.decode_control(data)
