"""Records the episodes of a server: one file per server process, one line per call.

A `Recorder` gives each session a `SessionRecorder`, which is told its calls and their results. Every
door leads through the session, so every door is recorded, wherever the environment lives.
"""

import logging
import platform
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from envtorch.errors import ConfigurationError, RecordingFailed
from envtorch.extras import install_command
from envtorch.recording.format import Fork, Header, Lost, write_line
from envtorch.recording.redaction import Redactor
from envtorch.recording.session_recorder import SessionRecorder
from envtorch.recording.writer import BACKLOG_BYTES, LineWriter, Render

__all__ = ["Recorder", "versions_of"]

logger = logging.getLogger(__name__)


class Recorder:
    """Follows the sessions of one server.

    The file is created when there is something to write. `secrets` are names of fields that are never
    written, beside those that the action's schema marks as secret and those whose names say so. With
    `required`, a call is refused with `RecordingFailed` while nothing can be written, before the environment
    sees it; without, the call is answered and its line is dropped, counted and noted in the recording.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        environment: str,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        versions: Mapping[str, str] | None = None,
        secrets: Iterable[str] = (),
        required: bool = False,
        backlog_bytes: int = BACKLOG_BYTES,
    ) -> None:
        self._required = required
        self.directory = Path(directory)
        self.environment = environment
        self.redactor = Redactor((schemas or {}).get("action"), secrets)
        self._schemas = schemas or {}
        self._versions = dict(versions or versions_of())
        self._backlog_bytes = backlog_bytes
        self._writer: LineWriter | None = None
        self._lost_before = 0
        """Lines that were lost while there was no file."""
        self._turn = threading.Lock()
        self._sessions = count(1)
        self._episodes = count(1)
        _require_directory(self.directory)

    @property
    def path(self) -> Path | None:
        """The file; None while there was nothing to write."""
        return self._writer.path if self._writer is not None else None

    def follow(self, copy_of: SessionRecorder | None = None) -> SessionRecorder:
        """The recorder of a new session. A fork's episode begins where its parent's stands."""
        recorder = SessionRecorder(self, next(self._sessions))
        if copy_of is not None and copy_of.episode is not None:
            self._note_fork(recorder, copy_of, copy_of.episode)
        return recorder

    def _note_fork(self, recorder: SessionRecorder, parent: SessionRecorder, parent_episode: int) -> None:
        recorder.episode, recorder.step = self.next_episode(), parent.step
        fork = Fork(
            session=recorder.session,
            episode=recorder.episode,
            parent_session=parent.session,
            parent_episode=parent_episode,
            parent_step=parent.step,
            at=round(time.time(), 6),
        )
        self.put(recorder.episode, 200, lambda: write_line(fork))

    def next_episode(self) -> int:
        return next(self._episodes)

    @property
    def problem(self) -> str | None:
        """Why nothing can be written at the moment; None while all is well."""
        return self._writer.problem if self._writer is not None else None

    @property
    def dropped(self) -> int:
        """How many lines could not be written."""
        return self._lost_before + (self._writer.dropped if self._writer is not None else 0)

    @property
    def refuses_calls(self) -> bool:
        """Whether calls are refused because they could not be recorded."""
        return self._required and self.problem is not None

    def require_disk(self) -> None:
        """Raise `RecordingFailed` where every call has to be recorded and none can be."""
        if self.refuses_calls:
            raise RecordingFailed(
                f"this call was not made: it has to be recorded, and {self.directory} cannot be written "
                f"({self.problem}); make room there, or serve without requiring the recording"
            )

    def put(self, episode: int, size: int, render: Render) -> None:
        """Have a line written, in its turn."""
        with self._turn:
            if self._writer is None:
                self._writer = self._begin()
            self._writer.put(episode, size, render)

    def lose(self, episode: int) -> None:
        """Count a line that could not even be put."""
        with self._turn:
            if self._writer is None:
                self._lost_before += 1
            else:
                self._writer.lose(episode)

    def _begin(self) -> LineWriter:
        now = datetime.now(UTC)
        header = Header(
            id=secrets.token_hex(4),
            environment=self.environment,
            started_at=round(now.timestamp(), 6),
            versions=self._versions,
            action_schema=dict(self._schemas.get("action", {})),
            observation_schema=dict(self._schemas.get("observation", {})),
        )
        name = f"{_file_name(self.environment)}-{now:%Y%m%dT%H%M%SZ}-{header.id}.jsonl"
        return LineWriter(
            self.directory / name,
            first_line=write_line(header),
            describe_loss=_loss_line,
            backlog_bytes=self._backlog_bytes,
        )

    def close(self) -> None:
        """Write what waits, and make the copy for training where pyarrow is installed. Blocks."""
        with self._turn:
            writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.close()
        if not writer.path.exists():  # the disk refused even the first line
            return
        if find_spec("pyarrow") is None:
            logger.info("%s: to have Parquet beside it: %s", writer.path, install_command("record"))
            return
        from envtorch.recording.parquet import export

        try:
            export(writer.path)
        except Exception:  # the recording itself is whole
            logger.exception("no Parquet was made of %s: try `envtorch recording export`", writer.path)


def _loss_line(missing: Mapping[int, int]) -> bytes:
    lost = Lost(count=sum(missing.values()), episodes=sorted(missing), at=round(time.time(), 6))
    return write_line(lost)


def versions_of(module: str | None = None) -> dict[str, str]:
    """The versions of Python, of EnvTorch, and of the package that has `module`."""
    found = {"python": platform.python_version(), "envtorch": metadata.version("envtorch")}
    top = (module or "").partition(".")[0]
    for distribution in metadata.packages_distributions().get(top, ()) if top else ():
        found[distribution] = metadata.version(distribution)
    return found


def _file_name(environment: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in environment) or "environment"


def _require_directory(directory: Path) -> None:
    """Find out now, and not at the first step, that nothing can be written there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".probe-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"recordings cannot be written to {directory}: {error.strerror}; name another directory"
        ) from error
