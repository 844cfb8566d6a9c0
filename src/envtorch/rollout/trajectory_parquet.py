"""Trajectories as Parquet, for training: a row each; loads with `datasets`."""

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from envtorch.extras import missing_extra
from envtorch.rollout.trajectory_files import TrajectoryFile

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise missing_extra("record", "Parquet needs pyarrow") from error

__all__ = ["COLUMNS", "export_trajectories"]

_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("tool_calls", pa.string()),
        ("tool_call_id", pa.string()),
    ]
)
_TURN = pa.struct(
    [
        ("reward", pa.float64()),
        ("policy_s", pa.float64()),
        ("step_s", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("said_tokens", pa.int64()),
    ]
)
COLUMNS = pa.schema(
    [
        ("task_id", pa.string()),
        ("options", pa.string()),
        ("prompt", pa.string()),
        ("member", pa.int64()),
        ("group_size", pa.int64()),
        ("ending", pa.string()),
        ("reward", pa.float64()),
        ("score", pa.float64()),
        ("blame_kind", pa.string()),
        ("blame_message", pa.string()),
        ("attempts_lost", pa.int64()),
        ("messages", pa.list_(_MESSAGE)),
        ("ids", pa.list_(pa.int64())),
        ("mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int64())),
        ("turns", pa.list_(_TURN)),
        ("settings", pa.string()),
    ]
)
ROWS_AT_ONCE = 256


def export_trajectories(file: TrajectoryFile, to: str | os.PathLike[str] | None = None) -> Path:
    """Write a file of trajectories as Parquet: beside it, with another ending, unless `to` says where.

    Options and tool calls, whose shape may change from row to row, are JSON text. The file appears when it is
    whole.
    """
    target = Path(to) if to is not None else file.path.with_suffix(".parquet")
    unfinished = target.with_name(f"{target.name}.part")
    with pq.ParquetWriter(unfinished, COLUMNS, compression="zstd") as writer:
        rows = map(_row, file.rows())
        while some := list(islice(rows, ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, schema=COLUMNS))
    return unfinished.replace(target)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    task, blame = row["task"], row["blame"] or {}
    return {
        **{name: row.get(name) for name in COLUMNS.names if name in row},
        "task_id": task["id"],
        "options": json.dumps(task["options"]),
        "prompt": task["prompt"],
        "blame_kind": blame.get("kind"),
        "blame_message": blame.get("message"),
        "attempts_lost": len(row["lost"]),
        "messages": list(_messages(row["messages"])),
    }


def _messages(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        calls, content = message.get("tool_calls"), message.get("content")
        yield {
            "role": message["role"],
            "content": content if content is None or isinstance(content, str) else json.dumps(content),
            "tool_calls": json.dumps(calls) if calls else None,
            "tool_call_id": message.get("tool_call_id"),
        }
