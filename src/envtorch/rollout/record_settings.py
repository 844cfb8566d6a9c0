"""What trajectories depend on beside their task: a record of rollouts belongs to these settings."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envtorch.client import EnvClient
from envtorch.errors import ConfigurationError
from envtorch.rollout.play_options import PlayOptions

__all__ = ["PlaySettings", "policy_settings", "refuse_other_settings", "settings_of"]

PlaySettings = Mapping[str, Any]
"""JSON values by name."""


def settings_of(client: type[EnvClient[Any, Any, Any]], policy: object, options: PlayOptions) -> PlaySettings:
    """The settings of rollouts, as a record keeps them. Servers are not among them: they change from run to
    run."""
    system = options.format.system
    return {
        "client": client.__qualname__,
        **policy_settings(policy),
        "format": _name_of(options.format),
        "system": hashlib.sha256(system.encode()).hexdigest()[:12] if system else None,
        "template": None if options.template is None else _name_of(options.template),
        "max_turns": options.max_turns,
        "step_timeout_s": options.step_timeout_s,
        "score": None if options.score is None else _name_of(options.score),
    }


def policy_settings(policy: object) -> PlaySettings:
    """The name of a policy, and its own `record_settings`, as an `OpenAIPolicy` has them."""
    return {"policy": _name_of(policy), **getattr(policy, "record_settings", {})}


def _name_of(part: object) -> str:
    """The name of a function, or of an object's class."""
    return str(getattr(part, "__qualname__", type(part).__qualname__))


def refuse_other_settings(path: Path, before: PlaySettings, now: PlaySettings) -> None:
    """Raise `ConfigurationError` when a file was recorded with other settings, naming what differs."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if names:
        differs = ", ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in names)
        raise ConfigurationError(
            f"{path} was recorded with other settings: {differs}",
            next_step="record to another file (`envtorch eval`: another --output), or open this one with "
            "TrajectoryFile(path, mixed=True), which adds to it all the same",
        )
