"""The keys of `task.toml` that Harbor's format has, and keys that look like one of them misspelt."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["misspelt_keys"]

_NETWORK = ("network_mode", "allowed_hosts")
_ENVIRONMENT = (
    *_NETWORK,
    "build_timeout_sec",
    "docker_image",
    "os",
    "cpus",
    "memory_mb",
    "storage_mb",
    "memory",  # older files
    "storage",
    "gpus",
    "gpu_types",
    "tpu",
    "env",
    "workdir",
    "healthcheck",
    "mcp_servers",
    "skills_dir",
    "allow_internet",
)
_KEYS: Mapping[str, tuple[str, ...]] = {
    "": (
        "schema_version",
        "version",
        "task",
        "metadata",
        "source",
        "artifacts",
        "environment",
        "agent",
        "solution",
        "verifier",
        "steps",
        "multi_step_reward_strategy",
    ),
    "environment": _ENVIRONMENT,
    "environment.healthcheck": (
        "command",
        "interval_sec",
        "timeout_sec",
        "start_period_sec",
        "start_interval_sec",
        "retries",
    ),
    "agent": (*_NETWORK, "timeout_sec", "user"),
    "solution": ("env",),
    "verifier": (*_NETWORK, "timeout_sec", "env", "user", "environment_mode", "environment", "collect"),
    "verifier.environment": _ENVIRONMENT,
}
"""By table. `[task]` and `[metadata]` only describe a task and may hold anything."""

_ALIKE = 0.77
"""How alike two names are that stand for one: `timeout` and `timeout_sec` are."""


def misspelt_keys(file: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each key that is none of the format's and looks like one. Other keys may stand: the
    format is extended by others."""
    for table, known in _KEYS.items():
        given = _table(file, table)
        for key in given:
            meant = None if key in known else _meant(key, known)
            if meant is not None and meant not in given:
                where = f"[{table}] " if table else ""
                yield (
                    f"task.toml: {where}{key} is not a key of the format and has no effect; "
                    f"write {meant}, if that is meant"
                )


def _table(file: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Any = file
    for part in name.split(".") if name else ():
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _meant(key: str, known: tuple[str, ...]) -> str | None:
    """The key that a name is most like. One with all words of a key and more is another key: a
    `max_timeout_sec` is no `timeout_sec`."""
    written = key.lower().replace("-", "_")
    for name in difflib.get_close_matches(written, known, n=len(known), cutoff=_ALIKE):
        if name == written or not set(name.split("_")) < set(written.split("_")):
            return name
    return None
