"""In a notebook an event loop is running already, and the blocking client works there all the same."""

import asyncio

from envtorch.envs.coding_env import CodeAction, CodingEnv
from envtorch.envs.repl_env import REPLEnv


def test_coding_in_a_running_event_loop() -> None:
    async def cell() -> str:
        with CodingEnv.local() as env:
            env.reset()
            env.step(CodeAction(code="x = 20"))
            return env.step(CodeAction(code="print(x + 1)")).observation.stdout.strip()

    assert asyncio.run(cell()) == "21"


def test_a_repl_in_a_running_event_loop() -> None:
    async def cell() -> str:
        with REPLEnv(llm_query_fn=lambda prompt: prompt.upper()) as env:
            env.reset(context="a book")
            return env.execute("print(llm_query(context))").observation.result.stdout.strip()

    assert asyncio.run(cell()) == "A BOOK"
