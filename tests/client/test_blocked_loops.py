"""An async client whose event loop is blocked by something else until after a deadline."""

import asyncio
import threading
import time

import pytest

from envtorch import Action, EnvClient, Environment, Observation, State
from envtorch.server import create_app
from tests.support import running


class Want(Action):
    size: int


class Got(Observation):
    text: str = ""


class Printer(Environment[Want, Got, State]):
    """Gives texts of any size, once the loop of its client is blocked."""

    has_begun = threading.Event()
    is_blocked = threading.Event()

    def reset(self, seed: int | None = None) -> Got:
        return Got()

    def step(self, action: Want) -> Got:
        self.has_begun.set()
        self.is_blocked.wait()
        return Got(text="x" * action.size)

    @property
    def state(self) -> State:
        return State()


class PrinterEnv(EnvClient[Want, Got, State]): ...


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_reply_that_arrived_while_the_loop_was_blocked_is_not_late(size: int) -> None:
    limit_s = 0.5

    async def run(url: str) -> str:
        async with PrinterEnv.aio(url, message_timeout_s=limit_s) as env:
            await env.reset()
            stepping = asyncio.create_task(env.step(Want(size=size)))
            await asyncio.to_thread(Printer.has_begun.wait)
            Printer.is_blocked.set()
            time.sleep(4 * limit_s)  # noqa: ASYNC251, as a model does that generates on the loop
            return (await stepping).observation.text

    Printer.has_begun.clear()
    Printer.is_blocked.clear()
    with running(create_app(Printer, Want, Got)) as server:
        assert asyncio.run(run(server.url)) == "x" * size
