"""Evaluate a policy on an environment's tasks: pass@k with intervals, and a page to click through.

Run: python examples/evaluate.py [DIRECTORY]
"""

import asyncio
import random
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel
from rich import print as show

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve
from envtorch.evaluation import Evaluation, EvaluationSettings, served_tasks
from envtorch.rollout import Completion, Prompt, Rollouts
from envtorch.tasks import TaskSet


class Sum(BaseModel):
    question: str
    answer: int


class Reply(Action):
    number: int


class Asked(Observation):
    text: str = ""


class Sums(Environment[Reply, Asked, State]):
    """A sum, and two attempts at it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet(
        Sum,
        {"test": [{"question": f"{n} + {3 * n}", "answer": 4 * n} for n in range(1, 21)]},
        hidden=["answer"],
    )

    def reset(self, task: Sum) -> Asked:
        self._task, self._state = task, State()
        return Asked(text=task.question)

    def step(self, action: Reply) -> Asked:
        self._state.step_count += 1
        is_right = action.number == self._task.answer
        is_over = is_right or self._state.step_count == 2
        return Asked(text="right" if is_right else "wrong", reward=float(is_right), done=is_over)

    @property
    def state(self) -> State:
        return self._state


class SumsEnv(EnvClient[Reply, Asked, State]): ...


async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
    """Stands for a model: it adds, the less carefully the larger the numbers. Yours is an `OpenAIPolicy`."""
    return [Completion(f'{{"number": {add(prompt)}}}') for prompt in prompts]


def add(prompt: Prompt) -> int:
    left, right = map(int, prompt.messages[1]["content"].split(" + "))
    return left + right + (random.random() < left / 25)


async def main(directory: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Sums, sessions=64)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    tasks = served_tasks(url) or []
    settings = EvaluationSettings("sums", "careless", samples=8, max_turns=2)
    evaluation = Evaluation(directory, settings, tasks)
    async with Rollouts(SumsEnv, url, policy, concurrency=64, max_turns=2) as rollouts:
        report = await evaluation.run(rollouts)
    show(report.table())
    print("worst:", ", ".join(result.task.id for result in report.worst))
    print("report:", directory / "report.html")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())))
