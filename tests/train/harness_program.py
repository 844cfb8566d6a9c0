"""TRL's `HarnessRolloutWorker` on OpenEnv's names as EnvTorch serves them, in an `AsyncGRPOTrainer`.

The argument says who asks the model: `trl`, through a `MCPHarnessAdapter`, or the `session`, whose agent runs
by itself and keeps the tokens of its calls. The model is behind HTTP, as vLLM is; here it runs on the CPU.
"""

import envtorch.compat.openenv  # noqa: F401, I001  # first, and at the top: TRL's worker runs this file again

import json
import sys
import tempfile
import threading
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import trl
from datasets import Dataset
from openenv.core.harness import (  # type: ignore[import-not-found]
    MCPHarnessAdapter,
    ResourceSessionFactory,
    StepEnvSessionAdapter,
    TrainingTrace,
    TrainingTurn,
    VerifyResult,
)
from openenv.core.env_server.mcp_types import Tool  # type: ignore[import-not-found]
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_rollout_worker
from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

from envtorch.rollout import Prompt
from envtorch.train import ModelPolicy
from examples.train_grpo import on_a_cpu
from tests.train.lamps import LAMPS, LampEnv, Press, lamps
from tests.train.tiny_models import make_model, make_tool_tokenizer

CALLS = [
    f'<tool_call>\n{{"name": "press", "arguments": {{"button": {n}}}}}\n</tool_call>' for n in range(LAMPS)
]
CHAT_TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
TOKENIZER = make_tool_tokenizer(CALLS, CHAT_TEMPLATE.read_text())
SAID = TOKENIZER.convert_tokens_to_ids(CALLS)
END: int = TOKENIZER.eos_token_id
PRESS = Tool(
    name="press",
    description="Press a button.",
    input_schema={"type": "object", "properties": {"button": {"type": "integer"}}, "required": ["button"]},
)
GROUP_SIZE, STEPS = 4, 3


# Sessions: what a user of the harness writes


def begin(result: Any, task: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": result.observation.lamp}]


class LampSession(StepEnvSessionAdapter):
    """A lamp with one tool."""

    def __init__(self, url: str, seed: int | None) -> None:
        self.rewards: list[float] = []
        super().__init__(LampEnv(url), None, [PRESS], self._act, begin, seed=seed)

    def _act(self, name: str, arguments: dict[str, Any]) -> Press:
        return Press(button=int(arguments["button"]))

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        told = super().call_tool(name, arguments)
        self.rewards.append(float(self._last.reward or 0.0))
        return told

    def verify(self, transcript: Any, final_state: Any = None) -> Any:
        return VerifyResult(env_reward=sum(self.rewards), done=self._last.done)


class LampAgentSession(LampSession):
    """A lamp and its agent, which asks the model by itself."""

    def __init__(self, url: str, model_url: str, seed: int | None, sampling: dict[str, Any]) -> None:
        super().__init__(url, seed)
        self._model_url = model_url
        self._sampling = sampling
        self._turns: list[TrainingTurn] = []

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        ids: list[int] = TOKENIZER.apply_chat_template(
            self.initial_messages(), add_generation_prompt=True, return_dict=False
        )
        while not self._last.done:
            asked = {"prompt": ids, "max_tokens": 1, **self._sampling}
            choice = post(f"{self._model_url}/v1/completions", asked)["choices"][0]
            said, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            mask = [0] * len(ids) + [1] * len(said)
            message = {"role": "assistant", "content": TOKENIZER.decode(said)}
            self._turns.append(
                TrainingTurn(
                    node_id=uuid.uuid4().hex,
                    prompt_token_ids=ids,
                    completion_token_ids=said,
                    per_token_logps=logprobs,
                    loss_mask=mask,
                    request={"messages": self.initial_messages()},
                    response={"choices": [{"message": message}]},
                )
            )
            if said[0] not in SAID:
                break
            self.call_tool("press", {"button": SAID.index(said[0])})
            ids = [*ids, *said, *TOKENIZER.encode(self._last.observation.lamp)]
        return 0

    def fetch_training_trace(self) -> TrainingTrace:
        return TrainingTrace(turns=self._turns)


class LampSessions(ResourceSessionFactory[LampSession]):
    def __init__(self, url: str, model_url: str, sampling: dict[str, Any] | None = None) -> None:
        self._url, self._model_url, self._sampling = url, model_url, sampling

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> LampSession:
        if self._sampling is None:
            return LampSession(self._url, seed)
        return LampAgentSession(self._url, self._model_url, seed, self._sampling)


# The model, behind HTTP


def post(url: str, asked: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class ServedModel:
    """Answers vLLM's `/v1/completions`, and takes the weights of the trainer."""

    def __init__(self) -> None:
        likely = [*SAID, END]
        self.model = make_model(TOKENIZER, width=16, layers=1)
        # With random weights it says nothing but calls and ends of turns.
        bias = {"sequence_bias": [[[id], 40.0] for id in likely]}
        self._policy = ModelPolicy(self.model, TOKENIZER, max_new_tokens=1, generation=bias)
        self.answered = self.updates = 0

    def complete(self, ids: Sequence[int]) -> dict[str, Any]:
        (said,) = self._policy([Prompt((), ids)])
        self.answered += 1
        return {"choices": [{"token_ids": said.ids, "logprobs": {"token_logprobs": said.logprobs}}]}

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        parameters = dict(self.model.named_parameters())
        with self._policy.lock, torch.no_grad():
            for name, weight in iterator:
                parameters[name].copy_(weight)
        self.updates += 1


@contextmanager
def serving(model: ServedModel) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(model.complete(asked["prompt"])).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# The trainer


def train(owner: str, url: str, output: str) -> dict[str, Any]:
    model = ServedModel()
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "play"}]] * 64})
    with serving(model) as model_url, on_a_cpu():
        # The worker asks vLLM over HTTP and nothing else, but refuses to be made where it is not installed.
        with patch.object(async_rollout_worker, "is_vllm_available", return_value=True):
            worker = HarnessRolloutWorker(
                model_name="tiny",
                dataset=rows,
                reward_funcs=[],
                processing_class=TOKENIZER,
                eos_token_ids=[END],
                num_generations=GROUP_SIZE,
                max_inflight_tasks=2 * GROUP_SIZE,
                queue_maxsize=4 * GROUP_SIZE,
                vllm_server_url=model_url,
                max_tokens=1,
                max_tool_calling_iterations=3,
                harness_session_factory=partial(LampSessions, url, model_url),
                harness_adapter=MCPHarnessAdapter() if owner == "trl" else None,
            )
        model.model.save_pretrained(output)
        TOKENIZER.save_pretrained(output)
        trainer = AsyncGRPOTrainer(
            output,
            args=AsyncGRPOConfig(
                output_dir=output,
                max_steps=STEPS,
                per_device_train_batch_size=2 * GROUP_SIZE,
                num_generations=GROUP_SIZE,
                token_budget=0,
                use_cpu=True,
                bf16=False,
                report_to=[],
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
            ),
            train_dataset=rows,
            processing_class=TOKENIZER,
            rollout_worker=worker,
            weight_transfer=model,
        )
        trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    return {"logged": logged, "answered": model.answered, "updates": model.updates}


if __name__ == "__main__":
    with lamps() as server, tempfile.TemporaryDirectory() as scratch:
        told = train(sys.argv[1], server.url, scratch)
    print(json.dumps(told))
