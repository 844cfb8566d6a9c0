"""A recording as Parquet, for training: one row per reset, step or tool call; loads with `datasets`.

What an environment defines (actions, observations, options, metadata) is JSON text in its column: its shape
may change from row to row, and a column's may not.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from envtorch.errors import ConfigurationError
from envtorch.extras import missing_extra
from envtorch.recording.format import Moment
from envtorch.recording.reader import Episode, Recording

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise missing_extra("record", "Parquet needs the pyarrow package") from error

__all__ = ["COLUMNS", "export", "rows"]

COLUMNS = pa.schema(
    [
        ("recording_id", pa.string()),
        ("episode_id", pa.string()),
        ("environment", pa.string()),
        ("envtorch_version", pa.string()),
        ("session", pa.int64()),
        ("parent_episode_id", pa.string()),
        ("parent_step", pa.int64()),
        ("seed", pa.int64()),
        ("complete", pa.bool_()),
        ("step", pa.int64()),
        ("kind", pa.string()),
        ("options", pa.string()),
        ("action", pa.string()),
        ("observation", pa.string()),
        ("reward", pa.float64()),
        ("done", pa.bool_()),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        ("metadata", pa.string()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("seconds", pa.float64()),
    ]
)

ROWS_AT_ONCE = 4096


def export(recording: Path | str, to: Path | str | None = None) -> Path:
    """Write a recording as Parquet: beside it, with another ending, unless `to` says where.

    An episode's rows lie together, in order. The file appears when it is whole.
    """
    opened = Recording.open(recording)
    target = Path(to) if to is not None else opened.path.with_suffix(".parquet")
    unfinished = target.with_name(f"{target.name}.part")
    try:
        with pq.ParquetWriter(unfinished, COLUMNS, compression="zstd") as writer:
            for batch in _batches(rows(opened), ROWS_AT_ONCE):
                writer.write_table(pa.Table.from_pylist(batch, schema=COLUMNS))
        return unfinished.replace(target)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ConfigurationError(f"{target} cannot be written: {error.strerror or error}") from error


def rows(recording: Recording) -> Iterator[dict[str, Any]]:
    """The rows of a recording, episode by episode."""
    ids = {episode.number: episode.id for episode in recording.episodes}
    for episode in recording.episodes:
        for moment in recording.moments(episode, inherited=False):
            yield {**_of_episode(recording, episode, ids), **_of_moment(moment)}


def _of_episode(recording: Recording, episode: Episode, ids: dict[int, str]) -> dict[str, Any]:
    seed = episode.seed
    return {
        "recording_id": recording.header.id,
        "episode_id": episode.id,
        "environment": recording.header.environment,
        "envtorch_version": recording.header.versions.get("envtorch"),
        "session": episode.session,
        "parent_episode_id": ids.get(episode.parent) if episode.parent is not None else None,
        "parent_step": episode.parent_step,
        "seed": seed if seed is not None and abs(seed) < 2**63 else None,
        "complete": episode.complete,
    }


def _of_moment(moment: Moment) -> dict[str, Any]:
    is_reset = moment.step == 0 and hasattr(moment, "options")
    error = moment.error
    return {
        "step": moment.step,
        "kind": moment.__struct_config__.tag,
        "options": _json(getattr(moment, "options", {}) or None),
        "action": None if is_reset else _json(moment.given),
        "observation": None if error is not None else _json(moment.observation),
        "reward": None if moment.reward is None else float(moment.reward),
        "done": moment.done,
        "terminated": moment.terminated,
        "truncated": moment.truncated,
        "metadata": _json(moment.metadata),
        "error_code": error.code if error is not None else None,
        "error_message": error.message if error is not None else None,
        "at": round(moment.at * 1_000_000),
        "seconds": moment.seconds,
    }


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _batches(rows: Iterator[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    yield batch
