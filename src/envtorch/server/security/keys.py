"""Tokens a server takes: one from a variable, or several, with dates, from a file that may change."""

import hmac
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from envtorch.errors import ConfigurationError

__all__ = ["Keys"]


class Keys:
    """Says whether a token opens the server.

    A file has a token per line, each with an optional time it is good until (`2027-01-31T12:00:00+00:00`);
    `#` begins a comment. It is read again when it changes, so tokens can be replaced without a restart.
    """

    def __init__(
        self, token: str | None = None, file: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._fixed = token.encode() if token else None
        self._file = file
        self._clock = clock
        self._read_at: int | None = None
        self._tokens: list[tuple[bytes, float]] = []
        self._refresh()
        if file is not None and not self._tokens:
            raise ConfigurationError(
                f"the token file {file} has no token in it, so that nobody could use the server",
                next_step="write a token on a line of its own, or leave the token file out",
            )

    def accept(self, shown: str) -> bool:
        """Whether this token is one of ours and still good. Takes as long whichever it is."""
        matches = [hmac.compare_digest(shown.encode(), token) for token in self.good()]
        return any(matches)

    def good(self) -> list[bytes]:
        """The tokens that open the server now."""
        self._refresh()
        now = self._clock()
        good = [token for token, until in self._tokens if now < until]
        return good if self._fixed is None else [*good, self._fixed]

    def _refresh(self) -> None:
        if self._file is None:
            return
        try:
            changed = self._file.stat().st_mtime_ns
            if changed != self._read_at:
                self._tokens = [_line(line) for line in _lines(self._file.read_text(encoding="utf-8"))]
                self._read_at = changed
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the token file cannot be read: {error}") from error


def _lines(text: str) -> list[str]:
    return [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]


def _line(line: str) -> tuple[bytes, float]:
    token, _, until = line.partition(" ")
    if not until.strip():
        return token.encode(), float("inf")
    try:
        return token.encode(), datetime.fromisoformat(until.strip()).timestamp()
    except ValueError:
        raise ConfigurationError(f"{until.strip()!r} in the token file is not a time") from None
