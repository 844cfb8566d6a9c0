"""The screen draws what hostile programs write, in the environment's own process: what that may cost."""

import tracemalloc
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyte", reason="the screen needs pyte: pip install 'envtorch[terminal]'")

from envtorch.envs.terminal_env.screens import TerminalScreen, encode_keys
from tests.support import cpu_s

FLOOD = 512 * 1024


def look_after(data: bytes) -> str:
    screen = TerminalScreen(24, 80)
    screen.feed(data)
    return screen.text()


@pytest.mark.parametrize(
    "sequence",
    [
        pytest.param(b"\x1b#8", id="test pictures"),
        pytest.param("\u0301".encode(), id="accents upon one letter"),
        pytest.param("\u0301\u0316".encode(), id="accents in turns"),
        pytest.param(b"\x1b[?3h\x1b[?3l", id="widths in turns"),
        pytest.param(b"\x1b[9999L\x1b[9999@", id="insertions"),
        pytest.param(b"\n", id="empty lines"),
    ],
)
def test_no_sequence_costs_much_more_than_text(sequence: bytes) -> None:
    text = cpu_s(lambda: look_after(b"x" * FLOOD))
    assert cpu_s(lambda: look_after(b"a" + sequence * (FLOOD // len(sequence))), times=1) < 50 * text


@pytest.mark.parametrize(
    "sequence", [b"\x1b7", b"\x1bH", b"\x1b[?9999h", b"\x1b]0;title\x07", b"\x1b]0;title without an end"]
)
def test_looking_again_and_again_does_not_take_more_memory(sequence: bytes) -> None:
    screen = TerminalScreen(24, 80)

    def look() -> int:
        screen.feed(sequence * 5_000)
        screen.text()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        look()
        second = look()
        assert max(look() for _ in range(6)) - second < 500_000
    finally:
        tracemalloc.stop()


def test_the_end_of_a_sequence_costs_no_more_than_text_however_long_ago_it_began() -> None:
    screen = TerminalScreen(24, 80)

    def look(data: bytes) -> str:
        screen.feed(data)
        return screen.text()

    look(b"\x1b[")
    for _ in range(6):
        look(b";" * FLOOD)
    assert cpu_s(lambda: look(b"m"), times=1) < cpu_s(lambda: look_after(b"x" * FLOOD))


def test_a_text_of_the_screen_stays_small_whatever_is_added_to_its_letters() -> None:
    screen = TerminalScreen(24, 80)
    longest = 0
    for _ in range(12):
        screen.feed(b"\x1b[H" + ("a" + 20 * "\u0301").encode() * 79)
        longest = max(longest, len(screen.text()))
        for line in range(1, 25):
            screen.feed(b"".join(b"\x1b[%d;%dH\xcc\x81" % (line, column) for column in range(2, 80)) * 4)
        longest = max(longest, len(screen.text()))
    assert longest < 24 * 80 * 10


def test_a_screen_that_cannot_be_drawn_is_cleared_and_says_so_and_goes_on() -> None:
    screen = TerminalScreen(24, 80)
    screen.feed(b"before\x1b#8" + b"\x1b#8" * 30_000)
    assert screen.text().splitlines()[0] == (
        "[the screen was cleared: what the program wrote cannot be drawn]"
    )
    screen.feed(b"\r\nafter")
    assert screen.text().splitlines() == ["", "after", "[cursor at line 2, column 6]"]


def test_a_cursor_that_was_saved_is_restored() -> None:
    screen = TerminalScreen(24, 80)
    screen.feed(b"ab\x1b7cd\x1b8X")
    assert screen.text().splitlines()[0] == "abXd"


@pytest.mark.parametrize(
    ("written", "line"),
    [
        pytest.param("漢字と✅ok", "漢字と✅ok", id="whole"),
        pytest.param("漢b\x1b[1Ga", "a b", id="first half overwritten"),
        pytest.param("漢b\x1b[2Ga", "漢ab", id="second half overwritten"),
        pytest.param("漢字\x1b[1G\x1b[1P", " 字", id="first half deleted"),
        pytest.param("漢字\x1b[2G\x1b[1@", "漢  字", id="halves moved apart"),
        pytest.param("漢\u0301b", "漢\u0301b", id="an accent upon it"),
        pytest.param("x" * 79 + "漢", "x" * 79 + "漢", id="in the last column"),
    ],
)
def test_half_of_a_wide_character_does_not_break_the_screen(written: str, line: str) -> None:
    screen = TerminalScreen(24, 80)
    screen.feed(written.encode())
    assert screen.text().splitlines()[0] == line
    screen.feed(b"\r\nafter")
    assert screen.text().splitlines()[:2] == [line, "after"]


@given(
    st.lists(
        st.sampled_from(
            ["漢", "✅", "a", "\u0301", "\t", "\r\n", "\x1b[1G", "\x1b[D", "\x1b[2C"]
            + [f"\x1b[{count}{edit}" for count in (1, 3) for edit in "@PXLM"]
            + ["\x1b[K", "\x1b[1K", "\x1b[J", "\x1b[1J", "\x1b[4h", "\x1b[4l"]
        ),
        max_size=60,
    )
)
def test_editing_among_wide_characters_does_not_clear_the_screen(pieces: list[str]) -> None:
    screen = TerminalScreen(4, 10)
    for piece in pieces:
        screen.feed(piece.encode())
        assert "cleared" not in screen.text()


@pytest.mark.parametrize("begin", [b"\x1b[", b"\x1b[38;5;1", b"\x1b]0;title"])
def test_a_sequence_without_an_end_is_not_drawn(begin: bytes) -> None:
    screen = TerminalScreen(24, 80)
    screen.feed(b"before" + begin + b";" * 5000)
    assert screen.text().splitlines()[0] == (
        "[the screen was cleared: what the program wrote cannot be drawn]"
    )
    screen.feed(b"after")
    assert screen.text().splitlines() == ["after", "[cursor at line 1, column 6]"]


@pytest.mark.parametrize(
    "written",
    [
        b"ab\x1b[2;10Hcd\x1b[1;31me",
        b"ab\x1b]0;a title\x07cd",
        b"ab\x1b]0;a title\x1b\\cd",
        b"ab\x1b(Bcd\x1b#8",
        b"ab\x1b[?25l\x1b[1$}cd\x1b7ef\x1b8gh",
        "漢\x9b2Dx✅".encode(),
    ],
)
def test_a_look_in_the_middle_of_a_sequence_or_character_changes_nothing(written: bytes) -> None:
    for end in range(len(written)):
        screen = TerminalScreen(24, 80)
        screen.feed(written[:end])
        screen.text()
        screen.feed(written[end:])
        assert screen.text() == look_after(written)


@pytest.mark.parametrize(
    ("written", "line"), [("⚠\ufe0f careful", "⚠ careful"), ("👩\u200d💻 she", "👩💻 she"), ("a\x01b", "ab")]
)
def test_what_follows_a_character_without_a_width_is_shown(written: str, line: str) -> None:
    assert look_after(written.encode()).splitlines()[0] == line


def test_keys_are_typed_in_pieces_that_end_with_escape() -> None:
    assert encode_keys("ix<esc>:wq<enter><nokey>") == [b"ix\x1b", b":wq\r<nokey>"]
    assert encode_keys("<esc><esc>") == [b"\x1b", b"\x1b"]
    assert encode_keys("") == []


def test_keys_are_encoded_in_time_that_grows_with_their_number() -> None:
    few, many = (cpu_s(partial(encode_keys, count * "<up>")) for count in (10_000, 160_000))
    assert many < 50 * few
