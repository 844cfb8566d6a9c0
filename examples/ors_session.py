"""The client of the Open Reward Standard plays on an EnvTorch server.

Run: pip install 'envtorch[ors]' && python examples/ors_session.py
"""

import os
import random
import socket
import threading

os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"

from openreward import OpenReward
from pydantic import BaseModel

from envtorch import Action, Environment, Observation, State, create_app, serve
from envtorch.tasks import TaskSet

ROUNDS = 3


class Game(BaseModel):
    seed: int


class Press(Action):
    """Press a button."""

    button: int


class Light(Observation):
    text: str = ""


class Buttons(Environment[Press, Light, State]):
    """Ten buttons, and a light that names one. Each right press is worth 1 / ROUNDS."""

    tasks = TaskSet(Game, {"train": [Game(seed=seed) for seed in range(8)]})

    def reset(self, task: Game) -> Light:
        self._random, self._state = random.Random(task.seed), State()
        return self._next(None)

    def step(self, action: Press) -> Light:
        self._state.step_count += 1
        return self._next((action.button == self._light) / ROUNDS)

    def _next(self, reward: float | None) -> Light:
        self._light = self._random.randrange(10)
        done = self._state.step_count == ROUNDS
        return Light(text=f"The light is {self._light}", reward=reward, done=done)

    @property
    def state(self) -> State:
        return self._state


def main() -> list[float]:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Buttons, sessions=8)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    client = OpenReward(api_key="none", base_url=url)
    environment = client.environments.get(name="buttons", base_url=url)
    print("splits:", environment.list_splits(), "tasks:", environment.num_tasks("train"))
    print("tools:", [tool.name for tool in environment.list_tools()])
    returns = []
    for index in range(environment.num_tasks("train")):
        with environment.session(split="train", index=index) as session:
            text, total, is_over = session.get_prompt()[0].text, 0.0, False
            while not is_over:
                output = session.call_tool("step", {"button": int(text[-1])})
                text, is_over = output.blocks[0].text, output.finished
                total += output.reward or 0.0
        returns.append(total)
    print(f"{len(returns)} episodes, mean return {sum(returns) / len(returns):.2f}")
    return returns


if __name__ == "__main__":
    main()
