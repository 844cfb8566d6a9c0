"""Reading recordings: which episodes there are, and what happened in each, step by step.

    recording = Recording.open("recordings/echo_env-20260101T120000Z-3f2a.jsonl")
    for episode in recording.episodes:
        for moment in recording.moments(episode):
            print(moment.step, moment.given, moment.outcome)

A file is scanned once, when it is opened; what happened in an episode is read when it is asked for, so a
recording may be larger than memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from envtorch.errors import ConfigurationError
from envtorch.recording.format import (
    Header,
    Line,
    Moment,
    Reset,
    Step,
    ToolCall,
    read_line,
)
from envtorch.types import Scalar

__all__ = ["Episode", "Recording", "find_recordings"]


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of a recording: what a list of them shows."""

    number: int
    """Its number in the file."""
    id: str
    """Unique among all recordings."""
    session: int
    options: dict[str, Any]
    """What `reset` was given; empty where the episode began without one."""
    parent: int | None
    """The number of the episode that this one is a fork of."""
    parent_step: int | None
    started_at: float
    seconds: float
    """What the environment took for all of it."""
    steps: int
    total_reward: float
    errors: int
    done: bool
    ended: bool
    """False for an episode that was cut short, or still runs."""
    complete: bool
    """False where lines were lost."""

    @property
    def seed(self) -> int | None:
        seed = self.options.get("seed")
        return seed if isinstance(seed, int) else None


class Recording:
    """One file of a recording."""

    def __init__(self, path: Path, header: Header, index: "_Index") -> None:
        self.path = path
        self.header = header
        self.episodes: Sequence[Episode] = tuple(
            entry.summary(header.id, complete=number not in index.gaps)
            for number, entry in index.entries.items()
        )
        """In the order in which they began."""
        self.is_torn = index.is_torn
        """The last line is half a line: the writer was killed. Everything before it is here."""
        self._offsets = {number: entry.offsets for number, entry in index.entries.items()}
        self._families = index.families

    @classmethod
    def open(cls, path: Path | str) -> "Recording":
        """The recording in a `.jsonl` file. Raises `ConfigurationError` for anything else."""
        path = Path(path)
        if path.suffix == ".parquet":
            beside = path.with_suffix(".jsonl")
            raise ConfigurationError(
                f"{path} is the copy for training: open {beside}, which it was made from"
            )
        try:
            with path.open("rb") as file:
                first = file.readline()
                header = _header_in(first)
                if not isinstance(header, Header):
                    raise ConfigurationError(
                        f"{path} is no recording: its first line does not say so",
                        next_step="name a .jsonl file that `envtorch serve --record` wrote",
                    )
                return cls(path, header, _Index.of(file, path, start=len(first)))
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error

    def episode(self, which: int | str) -> Episode:
        """The episode of that number or id."""
        for episode in self.episodes:
            if which in (episode.number, episode.id):
                return episode
        numbers = [episode.number for episode in self.episodes]
        has = f"it has {len(numbers)}, from {numbers[0]} to {numbers[-1]}" if numbers else "it has none"
        raise ConfigurationError(f"{self.path} has no episode {which}: {has}")

    def moments(self, episode: Episode, *, inherited: bool = True) -> list[Moment]:
        """What happened in an episode, from its reset on; for a fork, first what its parent did.

        Without `inherited`, a fork's own steps only.
        """
        before: list[Moment] = []
        if inherited and episode.parent is not None:
            shared = episode.parent_step or 0
            before = [m for m in self.moments(self.episode(episode.parent)) if m.step <= shared]
        return before + self._own(episode)

    def _own(self, episode: Episode) -> list[Moment]:
        moments: list[Moment] = []
        with self.path.open("rb") as file:
            for offset in self._offsets[episode.number]:
                file.seek(offset)
                line = read_line(file.readline())
                assert isinstance(line, Reset | Step | ToolCall)
                moments.append(line)
        return moments

    def families(self) -> Iterator[list[Line]]:
        """What happened in each session and its forks, in order: what must be replayed together."""
        with self.path.open("rb") as file:
            for offsets in self._families.values():
                lines: list[Line] = []
                for offset in offsets:
                    file.seek(offset)
                    lines.append(read_line(file.readline()))
                yield lines

    def lines(self) -> Iterator[Line]:
        """Every line in the order in which things happened, the header first."""
        with self.path.open("rb") as file:
            for text in file:
                if text.endswith(b"\n"):
                    yield read_line(text)


def _header_in(first: bytes) -> Line | None:
    """What the first line of a file says, if it is the line of a recording."""
    if not first.endswith(b"\n"):
        return None
    try:
        kind = msgspec.json.decode(first, type=_Glimpse).kind
    except (msgspec.DecodeError, UnicodeError):
        return None
    return read_line(first) if kind == "recording" else None


def find_recordings(path: Path | str) -> list[Path]:
    """The recordings at `path`: the file itself, or all in a directory, oldest first."""
    path = Path(path)
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"), key=lambda file: (file.stat().st_mtime, file.name))
        if not found:
            raise ConfigurationError(
                f"there is no recording in {path}: `envtorch serve ... --record` makes one"
            )
        return found
    if not path.exists():
        raise ConfigurationError(f"there is no recording at {path}")
    return [path]


class _Glimpse(msgspec.Struct):
    """What the index needs of a line; the rest of it is skipped over, not decoded."""

    kind: str
    episode: int = -1
    session: int = -1
    step: int = 0
    at: float = 0.0
    seconds: float = 0.0
    reward: Scalar | None = None
    done: bool = False
    error: Any = None
    options: dict[str, Any] = {}
    parent_session: int | None = None
    parent_episode: int | None = None
    parent_step: int | None = None
    episodes: list[int] = []


_glimpses: msgspec.json.Decoder[_Glimpse] = msgspec.json.Decoder(_Glimpse)

_CALLS = ("reset", "step", "tool")


@dataclass(slots=True)
class _Entry:
    first: _Glimpse
    offsets: list[int] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    total_reward: float = 0.0
    errors: int = 0
    done: bool = False
    ended: bool = False

    def take(self, line: _Glimpse, offset: int) -> None:
        self.offsets.append(offset)
        self.seconds += line.seconds
        self.errors += line.error is not None
        self.total_reward += float(line.reward or 0.0)
        self.done = self.done or line.done
        if line.kind == "reset":
            self.options = line.options
        else:
            self.steps += 1

    def summary(self, recording: str, *, complete: bool) -> Episode:
        first = self.first
        return Episode(
            number=first.episode,
            id=f"{recording}-{first.episode:06d}",
            session=first.session,
            options=self.options,
            parent=first.parent_episode,
            parent_step=first.parent_step,
            started_at=first.at,
            seconds=self.seconds,
            steps=self.steps,
            total_reward=self.total_reward,
            errors=self.errors,
            done=self.done,
            ended=self.ended,
            complete=complete,
        )


@dataclass(slots=True)
class _Index:
    """Where in the file each episode's lines are, and what they come to."""

    entries: dict[int, _Entry] = field(default_factory=dict)
    families: dict[int, list[int]] = field(default_factory=dict)
    """Of each session that is no fork: where the lines are that it and its forks became."""
    roots: dict[int, int] = field(default_factory=dict)
    """Of each session that is a fork: the session that it descends from."""
    gaps: set[int] = field(default_factory=set)
    """The numbers of episodes of which lines were lost."""
    is_torn: bool = False

    @classmethod
    def of(cls, lines: Iterator[bytes], path: Path, *, start: int) -> "_Index":
        index, offset = cls(), start
        for text in lines:
            if not text.endswith(b"\n"):
                index.is_torn = True
                break
            try:
                index._take(_glimpses.decode(text), offset)
            except (msgspec.DecodeError, UnicodeError) as error:
                raise ConfigurationError(
                    f"{path} is damaged: at byte {offset} is no line of a recording: {error}",
                    next_step="the lines before it are whole: keep them in another file",
                ) from error
            offset += len(text)
        return index

    def _take(self, line: _Glimpse, offset: int) -> None:
        if line.kind == "lost":
            self.gaps.update(line.episodes)
        elif line.kind == "end":
            if line.episode in self.entries:
                self.entries[line.episode].ended = True
        elif line.kind in (*_CALLS, "fork"):
            if line.parent_session is not None:
                self.roots[line.session] = self.roots.get(line.parent_session, line.parent_session)
            self.families.setdefault(self.roots.get(line.session, line.session), []).append(offset)
            entry = self.entries.setdefault(line.episode, _Entry(line))
            if line.kind in _CALLS:
                entry.take(line, offset)
