"""The options of rollouts, checked when rollouts are made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from envtorch.client import EnvClient
from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.protocol.arguments import LONGEST_S, is_duration, is_whole, shown
from envtorch.rollout.beginnings import Sharing
from envtorch.rollout.blame import Faults
from envtorch.rollout.chat_formats import ChatFormat
from envtorch.rollout.chat_templates import ChatTemplate
from envtorch.rollout.group_scoring import GroupScorer
from envtorch.rollout.trajectories import Ending

__all__ = [
    "PlayOptions",
    "refuse_no_callable",
    "refuse_no_client",
    "refuse_no_count",
    "refuse_no_faults",
    "refuse_no_format",
    "refuse_no_timeout",
]


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """How orders are played: the options of `Rollouts`. Raises `ConfigurationError` for what cannot be."""

    format: ChatFormat
    template: ChatTemplate | None
    concurrency: int
    max_turns: int
    attempts: int
    policy_calls: int
    batch_size: int
    step_timeout_s: float | None
    reset_timeout_s: float | None
    faults: Faults
    share: Sharing | None
    score: GroupScorer | None

    def __post_init__(self) -> None:
        refuse_no_format(self.format)
        for name in ("concurrency", "max_turns", "attempts", "policy_calls", "batch_size"):
            refuse_no_count(name, getattr(self, name))
        for name in ("step_timeout_s", "reset_timeout_s"):
            refuse_no_timeout(name, getattr(self, name))
        refuse_no_faults(self.faults)
        if self.share is not None and self.share not in get_args(Sharing):
            raise ConfigurationError(
                f"share is 'fork', 'reset', or left out to decide by cost; not {shown(self.share)}"
            )
        if self.score is not None:
            advice = "an async function from a group to its scores, such as score_each(function) makes"
            refuse_no_callable("score", self.score, advice)
        missing = [name for name in ("begin", "between", "text") if not hasattr(self.template, name)]
        if self.template is not None and missing:
            raise ConfigurationError(
                f"template is {shown(self.template)}, which has no {' and no '.join(missing)}: give a "
                "ChatTemplate, such as TransformersTemplate(tokenizer), or leave it out"
            )


def refuse_no_client(client: Any) -> None:
    """Raise `ConfigurationError` for what is no class of clients."""
    if not isinstance(client, type) or not issubclass(client, EnvClient):
        raise ConfigurationError(
            f"client is {shown(client)}: give the class of an environment's client, such as EchoEnv, and "
            "the address of its server as the second argument"
        )


def refuse_no_format(format: Any) -> None:
    """Raise `ConfigurationError` for what is no `ChatFormat`."""
    if not isinstance(format, ChatFormat):
        raise ConfigurationError(
            f"format is {format!r}: give a ChatFormat, such as JSONFormat(MyAction), or leave it out"
        )


def refuse_no_count(name: str, count: Any) -> None:
    """Raise `ConfigurationError` for what is no whole number of 1 or more."""
    if not is_whole(count) or count < 1:
        raise ConfigurationError(f"{name} is a whole number of at least 1, not {shown(count)}")


def refuse_no_timeout(name: str, timeout_s: Any) -> None:
    """Raise `ConfigurationError` for what is no time limit; None is the usual one."""
    if timeout_s is not None and not (is_duration(timeout_s) and timeout_s > 0):
        raise ConfigurationError(
            f"{name} is a number of seconds above 0 and up to {LONGEST_S:,.0f}, not {shown(timeout_s)}; "
            "leave it out for the usual limit"
        )


def refuse_no_callable(name: str, given: Any, advice: str) -> None:
    """Raise `ConfigurationError` for what cannot be called."""
    if not callable(given):
        raise ConfigurationError(f"{name} is {shown(given)}: give {advice}")


def refuse_no_faults(faults: Any) -> None:
    """Raise `ConfigurationError` for what are no endings by error."""
    is_told = isinstance(faults, Mapping) and all(
        isinstance(kind, type) and issubclass(kind, EnvTorchError) and isinstance(ending, Ending)
        for kind, ending in faults.items()
    )
    if not is_told:
        raise ConfigurationError(
            f"faults are endings by class of error, as in {{TimedOut: Ending.LOST}}, not {shown(faults)}"
        )
