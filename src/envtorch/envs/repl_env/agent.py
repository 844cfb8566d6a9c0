"""One agent at work: asks its model, runs the code in the reply, shows what came of it, until it answers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from envtorch.envs.repl_env.budgets import BudgetSpent
from envtorch.envs.repl_env.finals import find_final
from envtorch.envs.repl_env.language_models import ModelFailed
from envtorch.envs.repl_env.models import CodeBlockResult
from envtorch.envs.repl_env.prompts import (
    LAST_CHANCE,
    NUDGE,
    describe_result,
    first_messages,
    read_reply,
)

__all__ = ["Agent", "Answered", "Place", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """What running one block of code gave."""

    result: CodeBlockResult
    variables: list[str]
    done: bool = False
    final: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """How an agent's work ended. `answer` is None when it has none, and `reason` says why."""

    answer: str | None
    reason: str
    turns: int


class Place(Protocol):
    """Where an agent's code runs."""

    async def execute(self, code: str) -> Step: ...


Converse = Callable[[list[dict[str, str]]], Awaitable[str]]


@dataclass(slots=True)
class Agent:
    """A model, a place for its code, and how many turns it has."""

    converse: Converse
    place: Place
    max_turns: int
    output_limit: int = 8192

    async def work(self, task: str, *, context_length: int | None) -> Answered:
        """The answer to `task`; a model that fails or a budget that is spent ends the work without one."""
        messages = first_messages(task, context_length=context_length)
        turn = 0
        try:
            for turn in range(1, self.max_turns + 1):
                reply = await self.converse(messages)
                messages.append({"role": "assistant", "content": reply})
                ended, shown = await self._act(reply)
                if ended is not None:
                    return Answered(ended.final, "answered" if ended.final is not None else "over", turn)
                messages.append({"role": "user", "content": shown})
            messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n\n{LAST_CHANCE}"}
            last = await self.converse(messages)
        except (ModelFailed, BudgetSpent) as error:
            return Answered(None, error.message, turn)
        found = find_final(read_reply(last).prose)
        text = found.value if found is not None and not found.is_variable else last.strip()
        return Answered(text, "out of turns", self.max_turns)

    async def _act(self, reply: str) -> tuple[Step | None, str]:
        """Run every block of a reply. The step that ended the work, or what to show the model next."""
        read = read_reply(reply)
        shown: list[str] = []
        for code in read.blocks:
            step = await self.place.execute(code)
            if step.done:
                return step, ""
            shown.append(describe_result(step.result, step.variables, self.output_limit))
        found = find_final(read.prose)
        if found is not None:
            # In prose it means the same as in code, and there it is settled.
            call = f"FINAL_VAR({found.value!r})" if found.is_variable else f"FINAL({found.value!r})"
            step = await self.place.execute(call)
            if step.done:
                return step, ""
            shown.append(describe_result(step.result, step.variables, self.output_limit))
        return None, "\n\n".join(shown) or NUDGE
