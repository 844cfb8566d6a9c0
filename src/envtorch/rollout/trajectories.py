"""What a rollout is about and what comes of it: tasks, tokens, trajectories, groups."""

import enum
import hashlib
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, overload

from envtorch.errors import EnvTorchError
from envtorch.tasks import TaskEntry

__all__ = [
    "ChatMessage",
    "Ending",
    "Task",
    "Tokens",
    "Trajectory",
    "TrajectoryGroup",
    "TurnRecord",
    "plain_value",
]

ChatMessage = dict[str, Any]
"""A message in OpenAI's form: `role`, `content`, and for tools `tool_calls` or `tool_call_id`."""


def plain_value(value: Any) -> Any:
    """What stands for a value that JSON does not have: Python's own number for a scalar of numpy, else its
    `repr`."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


class Ending(enum.StrEnum):
    """Why a rollout is over."""

    DONE = "done"
    """The environment ended the episode, or the policy stopped calling tools."""
    MAX_TURNS = "max_turns"
    """The environment would have gone on."""
    POLICY = "policy"
    """The policy's completion was not an action, or its action exceeded a limit."""
    ENVIRONMENT = "environment"
    """The environment's own code raised, or a reward of it, or of the scorer, is no finite number."""
    LOST = "lost"
    """The infrastructure failed in every attempt."""

    @property
    def is_scored(self) -> bool:
        """Whether the reward says something about the policy."""
        return self not in (Ending.ENVIRONMENT, Ending.LOST)


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to play."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `reset`, such as `seed`."""
    prompt: str = ""
    """The instruction, if the environment's first observation does not hold it."""
    id: str = ""
    """A name that stays the same from run to run; by default a hash of the rest."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What a scorer needs, such as the answer. Neither the environment nor the policy sees it."""

    def __post_init__(self) -> None:
        if not self.id:
            parts = [dict(self.options), self.prompt, *([dict(self.data)] if self.data else ())]
            contents = json.dumps(parts, sort_keys=True, default=plain_value)
            object.__setattr__(self, "id", hashlib.sha256(contents.encode()).hexdigest()[:12])

    @classmethod
    def of(cls, given: "Task | TaskEntry[Any] | Mapping[str, Any] | int") -> "Task":
        """A task as it is, an entry of the environment's task set, the options of `reset`, or a seed."""
        if isinstance(given, Task):
            return given
        if isinstance(given, TaskEntry):
            return cls({"task": {"id": given.id, "hash": given.hash}}, id=given.id)
        if isinstance(given, Integral):
            return cls({"seed": int(given)})
        if isinstance(given, Mapping):
            return cls(dict(given))
        raise TypeError(
            f"{given!r} is no task: give a Task, an entry of a task set, a dictionary of reset's options, "
            "or a seed"
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """A conversation as token ids. `mask`, `logprobs` and `versions` are as long as `ids`."""

    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    """1 where the policy produced the token, 0 where the environment or the chat template did."""
    logprobs: tuple[float | None, ...] = ()
    """The policy's own log-probabilities; 0.0 where the mask is 0, and None where the policy told none."""
    versions: tuple[int, ...] = ()
    """The version of the weights that produced the token; 0 where the mask is 0."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.mask) == len(self.logprobs) == len(self.versions):
            lengths = f"{len(self.ids)} ids, {len(self.mask)} mask, {len(self.logprobs)} logprobs"
            raise ValueError(f"tokens are not aligned: {lengths}, {len(self.versions)} versions")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def prompt_length(self) -> int:
        """How many tokens stand before the policy's first."""
        return self.mask.index(1) if 1 in self.mask else len(self.mask)

    @property
    def has_logprobs(self) -> bool:
        """Whether the policy told the log-probability of every token that it produced."""
        return None not in self.logprobs

    @classmethod
    def joined(cls, parts: "Iterable[Tokens]") -> "Tokens":
        """Parts of one conversation, in order."""
        parts = list(parts)
        return cls(
            tuple(id for part in parts for id in part.ids),
            tuple(said for part in parts for said in part.mask),
            tuple(logprob for part in parts for logprob in part.logprobs),
            tuple(version for part in parts for version in part.versions),
        )

    def given(self, ids: Sequence[int]) -> "Tokens":
        """With tokens that the policy did not produce."""
        return self._with(ids, 0, (0.0,) * len(ids), 0)

    def said(self, ids: Sequence[int], logprobs: Sequence[float | None] | None, version: int = 0) -> "Tokens":
        """With tokens that the policy produced."""
        told = (None,) * len(ids) if logprobs is None else tuple(logprobs)
        return self._with(ids, 1, told, version)

    def _with(
        self, ids: Sequence[int], said: int, logprobs: tuple[float | None, ...], version: int
    ) -> "Tokens":
        count = len(ids)
        return Tokens(
            self.ids + tuple(ids),
            self.mask + (said,) * count,
            self.logprobs + logprobs,
            self.versions + (version,) * count,
        )

    def after(self, count: int) -> "Tokens":
        """Without the first `count` tokens."""
        return Tokens(self.ids[count:], self.mask[count:], self.logprobs[count:], self.versions[count:])

    def trimmed(self) -> "Tokens":
        """Without what follows the policy's last token: there is nothing in it to learn from."""
        end = len(self.mask)
        while end > 0 and not self.mask[end - 1]:
            end -= 1
        return Tokens(self.ids[:end], self.mask[:end], self.logprobs[:end], self.versions[:end])

    @property
    def oldest_version(self) -> int:
        """The oldest weights that produced a token; 0 when the policy has produced none."""
        return min(
            (version for version, said in zip(self.versions, self.mask, strict=True) if said), default=0
        )


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One completion and the step it led to."""

    reward: float | None
    """The step's reward; None when there was no step, or it had none."""
    policy_s: float
    """Seconds from asking for the completion to having it."""
    step_s: float
    prompt_tokens: int = 0
    """How many tokens the policy read; 0 when it does not tell."""
    said_tokens: int = 0
    """How many it produced."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode, from the first observation to its ending."""

    task: Task
    member: int
    """Its place in its group."""
    ending: Ending
    messages: tuple[ChatMessage, ...] = ()
    tokens: Tokens = field(default_factory=Tokens)
    """Empty for a policy that works on messages."""
    turns: tuple[TurnRecord, ...] = ()
    blame: Exception | None = None
    """The error that ended it; None when it ended by itself."""
    lost: tuple[EnvTorchError, ...] = ()
    """Why attempts before this one were lost."""
    score: float | None = None
    """What the rollouts' `score` gave it; None where the environment's rewards are all there is."""

    @property
    def reward(self) -> float | None:
        """The score, or else the sum of the steps' rewards; None when the ending is not scored: do not train
        on it."""
        if not self.ending.is_scored:
            return None
        return self.score if self.score is not None else sum(turn.reward or 0.0 for turn in self.turns)

    def reward_within(self, count: int) -> float | None:
        """The reward when only `count` tokens after the prompt are kept: that of the turns that end within
        them. A `score` is the whole episode's in any case."""
        if not self.ending.is_scored or self.score is not None:
            return self.reward
        end = self.tokens.prompt_length + count
        kept = [turn for turn in self.turns if turn.prompt_tokens + turn.said_tokens <= end]
        return sum(turn.reward or 0.0 for turn in kept)

    @property
    def cause(self) -> str:
        """The ending, and the class of the error behind it."""
        return f"{self.ending}: {type(self.blame).__name__}" if self.blame is not None else str(self.ending)


@dataclass(frozen=True, slots=True)
class TrajectoryGroup(Sequence[Trajectory]):
    """Rollouts of one task from one beginning."""

    task: Task
    members: tuple[Trajectory, ...]

    @property
    def rewards(self) -> tuple[float | None, ...]:
        return tuple(member.reward for member in self.members)

    def advantages(self, *, scale: bool = True) -> tuple[float | None, ...]:
        """Each reward minus the mean of those that are scored, divided by their deviation if `scale`.

        None for a member without a reward: it is left out of the mean, and not trained on.
        """
        scored = [reward for reward in self.rewards if reward is not None]
        if not scored:
            return self.rewards
        mean = statistics.fmean(scored)
        unit = statistics.pstdev(scored) + 1e-4 if scale else 1.0
        return tuple(None if reward is None else (reward - mean) / unit for reward in self.rewards)

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.members)

    @overload
    def __getitem__(self, place: int) -> Trajectory: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Trajectory, ...]: ...
    def __getitem__(self, place: int | slice) -> Trajectory | tuple[Trajectory, ...]:
        return self.members[place]
