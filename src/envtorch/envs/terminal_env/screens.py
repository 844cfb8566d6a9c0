"""The screen of a terminal: what programs have written to it, as a person would see it. Needs
`envtorch[terminal]`."""

import codecs
import re
import time
import unicodedata
from collections.abc import Mapping
from typing import Any

from envtorch.extras import missing_extra

try:
    import pyte
    from wcwidth import wcwidth
except ImportError as missing:
    raise missing_extra("terminal", "screen and send_keys need the pyte package") from missing

__all__ = ["TerminalScreen", "encode_keys"]

_MOST_BYTES = 128 * 1024
"""How much of what a program writes at once is shown: the rest is left out from the front."""
_MOST_CPU_S = 1.0
"""How long one look at the screen may compute. `_MOST_BYTES` of text need a fifth of it; some sequences cost
milliseconds each."""
_PIECE = 256
"""How many characters are drawn before the time is looked at."""
_MOST_UNFINISHED = 4096
"""How many characters of a sequence may be there before its end is."""
_UNFINISHED = re.compile(
    r"(?:\x1b\[|\x9b)[\d;?> \x07-\x0d]*\$?\Z"  # parameters, where control characters may come between
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9b-\x9d]*\x1b?\Z"  # a title
    r"|\x1b[#%()]?\Z"
)
"""The beginning of a sequence, at the end of what was written."""
_MOST_SAVED = 16
"""How many places of the cursor a program may save."""
_MOST_PER_CELL = 8
"""How many characters a cell may have on average: accents are added to the letter before them."""

KEYS = {
    "enter": "\r",
    "tab": "\t",
    "esc": "\x1b",
    "space": " ",
    "backspace": "\x7f",
    "delete": "\x1b[3~",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "page-up": "\x1b[5~",
    "page-down": "\x1b[6~",
}
_SPECIAL = re.compile(r"<([a-z-]+|ctrl-[a-z\[\\\]])>")


def encode_keys(keys: str) -> list[bytes]:
    """What to type, in pieces: a lone escape is followed by a pause, or a program takes it for Alt."""
    pieces: list[list[str]] = [[]]
    last = 0
    for match in _SPECIAL.finditer(keys):
        name = match[1]
        typed = chr(ord(name[-1].upper()) & 0x1F) if name.startswith("ctrl-") else KEYS.get(name)
        if typed is None:
            continue  # no key of that name: the text is typed as it is
        pieces[-1] += (keys[last : match.start()], typed)
        last = match.end()
        if name == "esc":
            pieces.append([])
    pieces[-1].append(keys[last:])
    texts = ["".join(piece) for piece in pieces]
    return [text.encode("utf-8", "surrogatepass") for text in texts if text]


class _Screen(pyte.Screen):  # type: ignore[misc]
    def draw(self, data: str) -> None:
        """Joiners and others without a width are left out: the library would leave out what follows them."""
        super().draw("".join(one for one in data if wcwidth(one) > 0 or unicodedata.combining(one)))

    def select_graphic_rendition(self, *attributes: int, **options: Any) -> None:
        """Private sequences, which vim sends, are no colours: the library would fail on them."""
        if not options.get("private"):
            super().select_graphic_rendition(*attributes)

    def save_cursor(self) -> None:
        super().save_cursor()
        del self.savepoints[:-_MOST_SAVED]

    def report_device_status(self, mode: int = 0, **_: Any) -> None:
        """Programs that ask for the cursor's place get no answer, as from many terminals."""


class TerminalScreen:
    """A screen of fixed size. It is given what hostile programs write, so bytes, memory and computing time
    are bounded."""

    def __init__(self, rows: int, columns: int) -> None:
        self._screen = _Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = bytearray()
        self._unfinished = ""

    def feed(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) > 2 * _MOST_BYTES:
            del self._waiting[:-_MOST_BYTES]

    def text(self) -> str:
        """The lines of the screen, and where the cursor is."""
        data, self._waiting = bytes(self._waiting[-_MOST_BYTES:]), bytearray()
        lines = self._draw(self._unfinished + self._decoder.decode(data))
        self._stream.detach(self._screen)
        if lines is None:  # an empty screen is better than no session
            self._screen = _Screen(self._screen.columns, self._screen.lines)
            self._unfinished = ""
            lines = ["[the screen was cleared: what the program wrote cannot be drawn]"]
        self._stream.attach(self._screen)  # anew: what it keeps of a sequence has no limit
        while lines and not lines[-1]:
            lines.pop()
        cursor = self._screen.cursor
        return "\n".join([*lines, f"[cursor at line {cursor.y + 1}, column {cursor.x + 1}]"])

    def _draw(self, data: str) -> list[str] | None:
        """The lines of the screen with it; None if it cannot be drawn within the limits."""
        found = _UNFINISHED.search(data)
        self._unfinished = "" if found is None else found[0]
        if len(self._unfinished) > _MOST_UNFINISHED:
            return None
        data = data.removesuffix(self._unfinished)
        end = time.thread_time() + _MOST_CPU_S
        try:
            for start in range(0, len(data), _PIECE):
                self._stream.feed(data[start : start + _PIECE])
                if time.thread_time() > end:
                    return None
            lines = self._lines()
        except Exception:  # a library that is given hostile bytes
            return None
        cells: int = self._screen.lines * self._screen.columns
        return lines if sum(map(len, lines)) <= _MOST_PER_CELL * cells else None

    def _lines(self) -> list[str]:
        """What the cells show. The library's own `display` fails on half of a wide character, which stays
        when the other half is overwritten or moved."""
        return [self._line(self._screen.buffer[row]).rstrip() for row in range(self._screen.lines)]

    def _line(self, cells: Mapping[int, pyte.screens.Char]) -> str:
        shown, before = [], ""
        for column in range(self._screen.columns):
            character = cells[column].data
            if not character and wcwidth(before[:1]) != 2:
                character = " "  # the second half of a wide character that is gone
            shown.append(character)
            before = character
        return "".join(shown)
