"""What the tools for files answer, from the bytes and lists that a session gives. No I/O.

The environments with files share these: `terminal_env` blocks on its session, `coding_env` awaits it.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Protocol

from envtorch.tools import CallToolResult

__all__ = [
    "IMAGE_BYTES",
    "MOST_FOUND",
    "MOST_LISTED",
    "READ_BYTES",
    "error_sentence",
    "found_lines",
    "image_answer",
    "listed_files",
    "replace_once",
    "selected_lines",
]

READ_BYTES = 4 * 1024 * 1024
"""Larger files are not read for an agent."""
IMAGE_BYTES = 4 * 1024 * 1024
MOST_FOUND, MOST_LISTED = 100, 1000

_MARKS = {"folder": "/", "link": "@"}
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class FileEntry(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...


class LineFound(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def text(self) -> str: ...


def selected_lines(data: bytes, path: str, first_line: int, last_line: int | None, limit: int) -> str:
    """Some lines of a text file, at most `limit` characters. Raises `ValueError` when it has no such line."""
    lines = data.decode(errors="replace").splitlines(keepends=True)
    if first_line > max(1, len(lines)):
        raise ValueError(f"{path} has {len(lines)} lines, and none with the number {first_line}")
    chosen = "".join(lines[first_line - 1 : last_line])
    if len(chosen) <= limit:
        return chosen
    return f"{chosen[:limit]}\n[... {len(chosen) - limit} characters left out: read it in parts ...]"


def replace_once(data: bytes, path: str, old: str, new: str) -> tuple[bytes, int]:
    """A file with a text replaced that occurs in it exactly once, and the line where that was. Raises
    `ValueError` when it does not, or does more often."""
    text = data.decode("utf-8", "surrogateescape")
    count = text.count(old)
    if count != 1:
        told = "does not occur" if not count else f"occurs {count} times"
        hint = "copy it exactly, white space included" if not count else "take more of the text around it"
        raise ValueError(f"the text to replace {told} in {path}: {hint}")
    line = text[: text.index(old)].count("\n") + 1
    return text.replace(old, new).encode("utf-8", "surrogateescape"), line


def listed_files(entries: Iterable[FileEntry], *, complete: bool) -> str:
    """One line for each entry: directories with a slash, links with an @."""
    lines = [f"{entry.path}{_MARKS.get(entry.kind, '')}" for entry in entries]
    return "\n".join([*lines, *([] if complete else [f"[there are more than {MOST_LISTED}]"])])


def found_lines(found: Sequence[LineFound], *, complete: bool) -> str:
    """One line for each that a search found."""
    lines = [f"{one.path}:{one.line}: {one.text}" for one in found]
    lines += [] if complete else [f"[there are more than {MOST_FOUND}]"]
    return "\n".join(lines) or "Nothing was found."


def image_answer(data: bytes, path: str) -> CallToolResult:
    """A picture as MCP tells it. What it is, its first bytes say: nothing is decoded here, since an agent
    made it. Raises `ValueError` for what is no PNG, JPEG, GIF or WebP."""
    kind = next((kind for start, kind in _IMAGES if data.startswith(start)), None)
    if kind is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is None:
        raise ValueError(f"{path} is no PNG, JPEG, GIF or WebP: convert it, or read it as text")
    told = f"{path}: {kind}, {len(data)} bytes"
    picture = {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": kind}
    return CallToolResult(content=[{"type": "text", "text": told}, picture], data=told)


def error_sentence(error: BaseException) -> str:
    """What an agent is told of an error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
