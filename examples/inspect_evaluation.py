"""Inspect AI evaluates a model in an EnvTorch environment, and in our sandbox. The model is a script.

Run: pip install 'envtorch[inspect]' && python examples/inspect_evaluation.py
"""

import random
import re
import socket
import tempfile
import threading
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ChatMessage, GenerateConfig, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolChoice, ToolInfo, bash

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve
from envtorch.train.inspect_solvers import in_session, play, session_reward

ROUNDS = 3


class Press(Action):
    """Press a button."""

    button: int


class Light(Observation):
    text: str = ""


class Buttons(Environment[Press, Light, State]):
    """Ten buttons, and a light that names one. Each right press is worth 1 / ROUNDS."""

    def reset(self, seed: int | None = None) -> Light:
        self._random, self._state = random.Random(seed), State()
        return self._next(None)

    def step(self, action: Press) -> Light:
        self._state.step_count += 1
        return self._next((action.button == self._light) / ROUNDS)

    def _next(self, reward: float | None) -> Light:
        self._light = self._random.randrange(10)
        done = self._state.step_count == ROUNDS
        return Light(text=f"The light is {self._light}.", reward=reward, done=done)

    @property
    def state(self) -> State:
        return self._state


class ButtonsEnv(EnvClient[Press, Light, State]): ...


def scripted(
    messages: list[ChatMessage], tools: list[ToolInfo], choice: ToolChoice, config: GenerateConfig
) -> ModelOutput:
    """A model that presses what is lit: by a tool where it has one, else by JSON."""
    told = messages[-1].text
    lights = re.findall(r"light is (\d)", told)
    if any(tool.name == "bash" for tool in tools):
        if messages[-1].role == "tool":
            output = ModelOutput.from_content("mockllm/model", f"It says {told}")
        else:
            output = ModelOutput.for_tool_call(
                "mockllm/model", "bash", {"command": "expr $(cat number.txt) + 2"}
            )
    elif "episode is over" in told or not lights:
        output = ModelOutput.from_content("mockllm/model", "Done.")
    elif tools:
        output = ModelOutput.for_tool_call("mockllm/model", "step", {"button": int(lights[-1])})
    else:
        output = ModelOutput.from_content("mockllm/model", f'{{"button": {lights[-1]}}}')
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


def evaluate(task: Task) -> EvalLog:
    model = get_model("mockllm/model", custom_outputs=scripted)
    (log,) = eval(task, model=model, log_dir=tempfile.mkdtemp(), display="none")
    return log


def result_of(log: EvalLog) -> dict[str, Any]:
    assert log.status == "success", log.error
    assert log.results is not None
    return {name: metric.value for name, metric in log.results.scores[0].metrics.items()}


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Buttons, sessions=32)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    games = [Sample(input="Press what is lit.", metadata={"reset": {"seed": seed}}) for seed in range(20)]
    by_turns = evaluate(Task(games, solver=play(ButtonsEnv, url), scorer=session_reward()))
    print("by turns:", result_of(by_turns))
    by_tools = evaluate(Task(games, solver=in_session(ButtonsEnv, url, generate()), scorer=session_reward()))
    print("by tools:", result_of(by_tools))
    sums = [Sample(input="What is it?", target="42", files={"number.txt": "40"}) for _ in range(10)]
    in_sandbox = Task(sums, solver=[use_tools(bash()), generate()], scorer=includes(), sandbox="envtorch")
    print("in our sandbox:", result_of(evaluate(in_sandbox)))


if __name__ == "__main__":
    main()
