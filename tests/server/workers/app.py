"""An environment that tells which process it lives in, and the applications that the workers' tests serve."""

import asyncio
import json
import os
import time
from typing import Any

from starlette.websockets import WebSocket

from envtorch import Action, ConcurrencyConfig, EnvClient, Environment, Observation, State
from envtorch.env import load_object
from envtorch.server import create_app


class Tell(Action):
    wait_s: float = 0.0
    wait_for: str = ""
    """A file: the step goes on when it is there."""
    burn_s: float = 0.0
    size: int = 0


class Told(Observation):
    process: int = 0
    total: int = 0
    padding: str = ""


class Teller(Environment[Tell, Told, State]):
    """Counts its steps, on the event loop."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_RESET = False  # most of these tests step at once

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    async def reset(self, seed: int | None = None) -> Told:
        self._state = State(step_count=seed or 0)
        return self._told(Tell())

    async def step(self, action: Tell) -> Told:
        if action.wait_s:
            await asyncio.sleep(action.wait_s)
        while action.wait_for and not os.path.exists(action.wait_for):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        self._state.step_count += 1
        return self._told(action)

    def _told(self, action: Tell) -> Told:
        return Told(process=os.getpid(), total=self._state.step_count, padding="x" * action.size)

    @property
    def state(self) -> State:
        return self._state


class BlockingTeller(Environment[Tell, Told, State]):
    """The same, on a thread of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_RESET = False  # most of these tests step at once

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None) -> Told:
        self._state = State(step_count=seed or 0)
        return Told(process=os.getpid(), total=self._state.step_count)

    def step(self, action: Tell) -> Told:
        time.sleep(action.wait_s)
        until = time.thread_time() + action.burn_s
        while time.thread_time() < until:
            pass
        self._state.step_count += 1
        return Told(process=os.getpid(), total=self._state.step_count)

    @property
    def state(self) -> State:
        return self._state


class TellerEnv(EnvClient[Tell, Told, State]): ...


shared = Teller()


def load(target: str) -> Any:
    """The application of a JSON object: which environment, with which options."""
    options = json.loads(target)
    if "build" in options:
        return load_object(options.pop("build"))(**options)
    environment = load_object(options.pop("environment"))
    for name in ("action_cls", "observation_cls"):
        if name in options:
            options[name] = load_object(options[name])
    config = ConcurrencyConfig(
        max_concurrent_envs=options.pop("capacity"), reconnect_grace=options.pop("grace_s", 30.0)
    )
    app = create_app(environment, concurrency_config=config, **options)
    app.get("/process")(process)
    app.post("/web/process")(process)
    app.websocket("/ws/ui")(watch)
    return app


async def process() -> int:
    return os.getpid()


async def watch(websocket: WebSocket) -> None:
    await websocket.accept()
    while await websocket.receive_text() == "more":
        await websocket.send_text(str(os.getpid()))
    await websocket.close()
