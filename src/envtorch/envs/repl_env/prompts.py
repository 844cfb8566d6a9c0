"""What an agent is told, and how its replies are read."""

import re
from dataclasses import dataclass

from envtorch.envs.repl_env.models import CodeBlockResult
from envtorch.envs.repl_env.notebook import cut

__all__ = ["LAST_CHANCE", "NUDGE", "Reply", "describe_result", "first_messages", "read_reply"]

SYSTEM = """\
You answer a question by writing Python. You have a live interpreter: whatever you define stays until you are
done. Write code in fenced blocks marked `repl`; every block of a reply is run, in order, and you are shown what it
printed.

In the interpreter there are:
- `context`: the material the question is about. It may be far too long to print; slice it, search it, measure it.
- `llm_query(prompt)` and `llm_query_batched(prompts)`: ask a language model about text you put into the prompt. A
  batch is answered all at once, in order.
- `rlm_query(prompt, context=None)` and `rlm_query_batched(prompts, contexts=None)`: give parts of the work to child
  agents. A child has an interpreter like yours with a copy of your variables, and `context` replaced if you pass
  one; pass objects, not text about them. It works in turns, as you do, and you get its answer as a string.
- `SHOW_VARS()`: the variables you have made.
- `FINAL(value)` and `FINAL_VAR("name")`: your answer. Calling one ends your work, so look at your results first.

An answer that begins with "Error" says why there is none. For example:

```repl
lines = context.splitlines()
print(len(lines), lines[:3])
```
"""  # noqa: E501

TASK = "The question:\n{task}\n\n{about}"
NUDGE = "Nothing was run: there was no fenced block marked `repl`, and no final answer. Go on."
LAST_CHANCE = "You have no turns left. Reply with your answer and nothing else."

_BEGIN = re.compile(r"^```(?:repl|python|py)[ \t]*\n", re.MULTILINE)
_END = re.compile(r"^```[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply, taken apart."""

    blocks: tuple[str, ...]
    prose: str
    """What is left without the blocks; a final answer may be in it."""


def read_reply(text: str) -> Reply:
    """The blocks of code in a reply. A block that is not closed was cut off, and is none."""
    blocks, prose, position = [], [], 0
    while (begin := _BEGIN.search(text, position)) and (end := _END.search(text, begin.end())):
        blocks.append(text[begin.end() : end.start()])
        prose.append(text[position : begin.start()])
        position = end.end()
    return Reply(tuple(blocks), "".join([*prose, text[position:]]))


def first_messages(task: str, *, context_length: int | None) -> list[dict[str, str]]:
    """How a conversation begins. A `context_length` of None says that the context is some other object."""
    if context_length is None:
        about = "`context` holds what it is about; look at its type first."
    elif context_length:
        about = f"`context` is a string of {context_length} characters."
    else:
        about = "There is no `context`."
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": TASK.format(task=task, about=about)},
    ]


def describe_result(result: CodeBlockResult, variables: list[str], limit: int) -> str:
    """What a block did, as the agent is told. Nothing in it depends on the time of day or on speed."""
    parts = [f"stdout:\n{cut(result.stdout, limit)}" if result.stdout else "Nothing was printed."]
    if result.stderr:
        parts.append(f"stderr:\n{cut(result.stderr, limit)}")
    parts.append(f"Variables: {', '.join(variables) or 'none'}")
    return "\n\n".join(parts)
