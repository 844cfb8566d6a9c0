"""A conversation while it is played."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.rollout.chat_formats import ChatFormat
from envtorch.rollout.chat_templates import ChatTemplate
from envtorch.rollout.completions import Completion, Prompt
from envtorch.rollout.trajectories import ChatMessage, Ending, Task, Tokens, Trajectory, TurnRecord
from envtorch.types import StepResult

__all__ = ["Transcript"]


@dataclass(slots=True)
class Transcript:
    """The messages and tokens of one rollout so far. `copy` gives another rollout the same beginning."""

    task: Task
    format: ChatFormat
    template: ChatTemplate | None
    messages: list[ChatMessage] = field(default_factory=list)
    tokens: Tokens = field(default_factory=Tokens)
    turns: list[TurnRecord] = field(default_factory=list)
    _unanswered: Completion = field(default_factory=Completion)

    @classmethod
    def begin(
        cls, task: Task, format: ChatFormat, template: ChatTemplate | None, result: StepResult[Any]
    ) -> Self:
        """A conversation with its first observation."""
        messages = format.begin(task, result)
        tokens = Tokens()
        if template is not None:
            tokens = tokens.given(template.begin(messages, format.tools))
        return cls(task, format, template, messages, tokens)

    def copy(self) -> Self:
        """The same conversation, to be continued separately."""
        return replace(self, messages=list(self.messages), turns=list(self.turns))

    @property
    def prompt(self) -> Prompt:
        """What the policy is to complete next."""
        ids = self.tokens.ids if self.template is not None else None
        return Prompt(tuple(self.messages), ids, self.format.tools)

    def say(self, completion: Completion) -> Completion:
        """Add the policy's turn; the completion with its text. Raises `ValueError` if tokens do not fit."""
        if completion.logprobs is not None and len(completion.logprobs) != len(completion.ids):
            counts = f"{len(completion.logprobs)} log-probabilities for {len(completion.ids)} tokens"
            raise ValueError(f"the policy gave {counts}")
        if self.template is not None:
            if completion.text and not completion.ids:
                raise ValueError("the policy gave no token ids, and these rollouts have a chat template")
            if not completion.text:
                completion = replace(completion, text=self.template.text(completion.ids))
            self.tokens = self.tokens.said(completion.ids, completion.logprobs, completion.version or 0)
        elif completion.prompt_ids is not None:
            self._take_tokens(completion, completion.prompt_ids)
        self.messages.append(self.format.said(completion))
        self._unanswered = completion
        return completion

    def _take_tokens(self, completion: Completion, prompt: Sequence[int]) -> None:
        """Add the tokens of a policy with a chat template of its own, whose prompts continue each other."""
        before = len(self.tokens)
        if tuple(prompt[:before]) != self.tokens.ids:
            raise ConfigurationError(
                "the endpoint's chat template changes earlier messages when others follow, or it has "
                "read what the model said with other tokens than it was said with. Give the rollouts a "
                "`template`, which keeps them, ask for no token ids, or serve a template that only appends"
            )
        heard = self.tokens.given(prompt[before:])
        self.tokens = heard.said(completion.ids, completion.logprobs, completion.version or 0)

    def answer(self, results: Sequence[StepResult[Any]]) -> None:
        """Add what the policy sees of its steps."""
        messages = self.format.answers(self._unanswered, results)
        self.messages += messages
        if self.template is not None:
            self.tokens = self.tokens.given(self.template.between(self._unanswered.ids, messages))

    def end(
        self, ending: Ending, member: int, lost: tuple[EnvTorchError, ...], blame: Exception | None = None
    ) -> Trajectory:
        """The trajectory, as it is now."""
        turns = tuple(self.turns)
        return Trajectory(
            self.task, member, ending, tuple(self.messages), self.tokens, turns, blame=blame, lost=lost
        )
