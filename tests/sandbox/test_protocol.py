"""Every byte from a sandbox is hostile: the reader has a message, nothing, or `Nonsense` for it."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.sandbox import protocol
from envtorch.sandbox.guest import guest_wire as wire
from envtorch.sandbox.protocol import (
    Forked,
    FrameReader,
    GuestHello,
    Message,
    Nonsense,
    OwnerCall,
    RunResult,
    Shared,
)

ME = "0123456789abcdef"
OTHER = "fedcba9876543210"
ANY: tuple[type[Message], ...] = (OwnerCall, Forked, GuestHello, Shared, RunResult)
KINDS: dict[type[Message], str] = {OwnerCall: "call", Forked: "forked", GuestHello: "hello"}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(GuestHello),
    st.builds(Forked, error=st.none() | st.text()),
    st.builds(
        OwnerCall,
        call=st.integers(0, 2**31),
        name=st.text(),
        args=st.lists(PLAIN, max_size=3),
        kwargs=st.dictionaries(st.text(), PLAIN, max_size=3),
    ),
)


def framed(message: Message, identifier: str = ME) -> bytes:
    return wire.frame(KINDS[type(message)], identifier, msgspec.to_builtins(message))


def header(size: int, kind: int, identifier: str = ME) -> bytes:
    return wire.HEADER.pack(size, kind, identifier.encode())


def reader() -> FrameReader:
    return FrameReader()


def read_all(given: FrameReader) -> list[Message]:
    found = []
    while (said := given.next(ME, ANY)) is not None:
        found.append(said)
    return found


@given(st.lists(st.tuples(MESSAGES, st.booleans()), max_size=5), st.integers(1, 64))
def test_what_one_side_says_the_other_reads_however_it_is_cut(
    said: list[tuple[Message, bool]], size: int
) -> None:
    stream = b"".join(framed(message, ME if mine else OTHER) for message, mine in said)
    mine = reader()
    heard: list[Message] = []
    for start in range(0, len(stream), size):
        mine.feed(stream[start : start + size])
        heard += read_all(mine)
    assert heard == [message for message, mine in said if mine]


@given(st.binary(max_size=300))
def test_noise_is_nonsense_or_nothing(noise: bytes) -> None:
    mine = reader()
    mine.feed(noise)
    with contextlib.suppress(Nonsense):
        read_all(mine)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" * 100_000,
        b'{"error":1}',
        b'{"error":null,"more":1}',
        b"{}",
        b"\xff\xfe",
        b'{"error":1' + b"0" * 5000 + b"}",
        b"[]",
    ],
)
def test_malformed_messages_are_nonsense(data: bytes) -> None:
    mine = reader()
    mine.feed(header(len(data), wire.KINDS["forked"]) + data)
    with pytest.raises(Nonsense):
        mine.next(ME, ANY)


@pytest.mark.parametrize("kind", sorted(wire.KINDS))
def test_a_frame_that_is_too_large_is_refused_before_it_is_read(kind: str) -> None:
    mine = reader()
    mine.feed(header(2**31, wire.KINDS[kind]))
    with pytest.raises(Nonsense, match="2147483648 bytes"):
        mine.next(ME, ANY)


def test_a_frame_of_another_kind_is_refused_before_it_is_read() -> None:
    mine = reader()
    mine.feed(header(100, wire.KINDS["variables"]))
    with pytest.raises(Nonsense, match="no answer"):
        mine.next(ME, (RunResult, OwnerCall))


def test_frames_of_other_requests_are_neither_kept_nor_decoded_nor_endless() -> None:
    mine = reader()
    mine.feed(header(1_000_000, wire.KINDS["result"], OTHER) + b"no JSON at all")
    assert mine.next(ME, ANY) is None
    for _ in range(10):
        mine.feed(b"x" * 99_998)
        assert not mine.has_more
    mine.feed(b"x" * 6 + framed(GuestHello()))
    assert mine.next(ME, ANY) == GuestHello()
    mine.feed(header(0, wire.KINDS["hello"], OTHER) * 20_000)
    with pytest.raises(Nonsense, match="no request"):
        mine.next(ME, ANY)


@given(PLAIN)
def test_what_has_few_values_is_never_refused_for_having_too_many(value: object) -> None:
    assert not wire.has_too_many_values(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("value", "too_many"),
    [
        ([[]] * 60_000, True),
        ([""] * 60_000, True),
        (["a,b"] * 60_000, True),
        ([{"": 0}] * 60_000, True),
        (["\\"] * 60_000, True),
        (["," * 500_000], False),
        (['"[{,\\' * 100_000] * 3, False),
        (["\\", '\\"', "a\n" * 5] * 10_000, False),
        ([0] * 40_000, False),
    ],
    ids=["lists", "empty", "commas", "mappings", "escapes", "text", "structure in text", "mixed", "few"],
)
def test_values_are_counted_without_decoding_and_text_is_not_taken_for_them(
    value: object, too_many: bool
) -> None:
    assert wire.has_too_many_values(json.dumps(value).encode()) is too_many


def test_a_call_with_too_many_values_is_nonsense() -> None:
    data = json.dumps({"call": 1, "name": "f", "args": [[]] * 60_000, "kwargs": {}}).encode()
    mine = reader()
    mine.feed(header(len(data), wire.KINDS["call"]) + data)
    with pytest.raises(Nonsense, match="values"):
        mine.next(ME, ANY)


@given(st.binary(max_size=100))
def test_control_packets_of_any_kind_do_not_crash(data: bytes) -> None:
    with contextlib.suppress(Nonsense):
        protocol.decode_control(data)
