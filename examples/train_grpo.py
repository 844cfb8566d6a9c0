"""Train a language model on an environment with GRPO, from nothing, in a few minutes on two cores.

    pip install 'envtorch[trl]' matplotlib
    python examples/train_grpo.py                                     # through GRPOTrainer(rollout_func=...)
    python examples/train_grpo.py --async                             # through AsyncGRPOTrainer
    python examples/train_grpo.py --faults 0.05                       # servers and sockets fail meanwhile
    python examples/train_grpo.py --faults 0.05 --score-lost-as-zero  # as a loop without EnvTorch would

The model is made on the spot: 25 words, one layer, random weights. The environment shows a light and wants
the button of the same number pressed, three times in an episode. Each run adds its curve to curves.json, and
draws all curves that are there in curves.png.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve
from envtorch.rollout import ChatFormat, Completion, NotAnAction, TransformersTemplate

BUTTONS, ROUNDS = 10, 3
GROUPS, GROUP_SIZE = 8, 8

# The environment


class Press(Action):
    button: int


class Light(Observation):
    light: str = ""


class Buttons(Environment[Press, Light, State]):
    """Press the button of the light that is on, `ROUNDS` times; each right one is worth 1 / ROUNDS."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None) -> Light:
        self._random = random.Random(seed)
        self._state = State()
        return self._next()

    def step(self, action: Press) -> Light:
        reward = float(action.button == self._light) / ROUNDS
        self._state.step_count += 1
        return self._next(reward=reward, done=self._state.step_count == ROUNDS)

    def _next(self, **outcome: Any) -> Light:
        self._light = self._random.randrange(BUTTONS)
        return Light(light=f"light{self._light}", **outcome)

    @property
    def state(self) -> State:
        return self._state


class ButtonsClient(EnvClient[Press, Light, State]): ...


class PressFormat(ChatFormat):
    """An action is one word, such as `press7`."""

    def actions(self, completion: Completion) -> Sequence[Press]:
        word = completion.text.strip()
        if not word.startswith("press"):
            raise NotAnAction(f"{word!r} is not a button")
        return [Press(button=int(word.removeprefix("press")))]


# The model

WORDS = [
    *("<pad>", "<end>", "system", "user", "assistant"),
    *(f"light{number}" for number in range(BUTTONS)),
    *(f"press{number}" for number in range(BUTTONS)),
]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' + message['content'] + ' <end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def make_model() -> tuple[Any, Any]:
    """A model with random weights, and a tokenizer that has a token for each word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", chat_template=CHAT_TEMPLATE
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "vocab_size": len(WORDS)}
    config = Qwen2Config(**shape, **tokens, num_key_value_heads=2, tie_word_embeddings=False)
    return Qwen2ForCausalLM(config), tokenizer


# Training

Curve = list[float]


def train(urls: list[str], steps: int, options: dict[str, Any], *, lost_is_zero: bool) -> tuple[Curve, int]:
    """Train with TRL's GRPOTrainer; the mean reward of each step, and how many rollouts had none."""
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from envtorch.train import TRLRollouts

    model, tokenizer = make_model()
    with TRLRollouts(ButtonsClient, urls, tasks=range(10_000), **options) as rollouts:
        curve: Curve = []
        unscored = 0

        def play(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
            nonlocal unscored
            columns = rollouts.rollout_func(prompts, trainer)
            unscored += columns["env_reward"].count(None)
            if lost_is_zero:
                score_lost_as_zero(rollouts, columns)
            given = [reward for reward in columns["env_reward"] if reward is not None]
            curve.append(sum(given) / max(len(given), 1))
            show(curve, steps)
            return columns

        trainer = GRPOTrainer(
            model,
            args=GRPOConfig(
                **common(steps),
                per_device_train_batch_size=GROUPS * GROUP_SIZE,
                max_completion_length=1,
                lr_scheduler_type="constant",
                loss_type="dapo",
            ),
            train_dataset=rollouts.dataset,
            processing_class=tokenizer,
            rollout_func=play,
            reward_funcs=rollouts.reward,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return curve, unscored


def train_async(urls: list[str], steps: int, options: dict[str, Any]) -> tuple[Curve, int]:
    """Train with TRL's AsyncGRPOTrainer: episodes are played while it learns from those before."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from envtorch.train import ModelPolicy, TRLRolloutWorker

    model, tokenizer = make_model()
    worker = TRLRolloutWorker(
        ButtonsClient,
        urls,
        ModelPolicy(model, tokenizer, max_new_tokens=1),
        tasks=range(10_000),
        group_size=GROUP_SIZE,
        concurrency=GROUPS * (GROUP_SIZE + 1),
        buffer=GROUPS * GROUP_SIZE,
        template=TransformersTemplate(tokenizer),
        **options,
    )
    batch = GROUPS * GROUP_SIZE
    with tempfile.TemporaryDirectory() as saved, on_a_cpu():
        model.save_pretrained(saved)
        tokenizer.save_pretrained(saved)
        trainer = AsyncGRPOTrainer(
            saved,
            args=AsyncGRPOConfig(
                **common(steps), per_device_train_batch_size=batch, token_budget=0, max_staleness=3
            ),
            train_dataset=Dataset.from_dict({"prompt": ["played by the worker"] * batch}),
            processing_class=tokenizer,
            rollout_worker=worker,
            weight_transfer=worker.weights,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    logs = [row for row in trainer.state.log_history if row.get("rollout/reward") is not None]
    unscored = sum(row["rollout/unscored_total"] for row in logs)
    return [row["rollout/reward"] for row in logs], int(unscored)


def common(steps: int) -> dict[str, Any]:
    """What both trainers are told."""
    return {
        "output_dir": tempfile.gettempdir(),
        "max_steps": steps,
        "num_generations": GROUP_SIZE,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "bf16": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }


def score_lost_as_zero(rollouts: Any, columns: dict[str, list[Any]]) -> None:
    """What a loop does that does not know a lost rollout from a bad one: train on it, with reward 0."""
    for row, trajectory in enumerate(rollouts.played):
        if trajectory.reward is None:
            columns["env_reward"][row] = 0.0
            tokens = trajectory.tokens.trimmed()
            if tokens.ids:
                start = tokens.prompt_length
                said = tokens.after(start)
                columns["prompt_ids"][row], columns["completion_ids"][row] = tokens.ids[:start], said.ids
                columns["logprobs"][row], columns["env_mask"][row] = said.logprobs, said.mask


@contextmanager
def on_a_cpu() -> Iterator[None]:
    """Let AsyncGRPOTrainer, which is written for GPUs, run without one."""
    import torch
    from transformers import AttentionInterface
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **rest: Any) -> tuple[Any, None]:
        """Each segment of the tree looks at the path from the root to itself."""
        groups = query.shape[1] // key.shape[1]
        index, queries, keys = rest["tree_kv_index"], rest["tree_cu_seqlens_q"], rest["tree_cu_seqlens_k"]
        seen_keys, seen_values = (x[0][:, index].repeat_interleave(groups, 0) for x in (key, value))
        parts = []
        for q, q_end, k, k_end in zip(queries, queries[1:], keys, keys[1:], strict=False):
            later = torch.arange(k_end - k)[None] <= torch.arange(q_end - q)[:, None] + (k_end - k) - (
                q_end - q
            )
            parts.append(
                torch.nn.functional.scaled_dot_product_attention(
                    query[0][:, q:q_end],
                    seen_keys[:, k:k_end],
                    seen_values[:, k:k_end],
                    attn_mask=later,
                    scale=rest.get("scaling"),
                )
            )
        return torch.cat(parts, 1).transpose(0, 1)[None], None

    def register() -> None:
        register_theirs()
        AttentionInterface.register(packing.TREE_ATTENTION, attention)

    register_theirs = packing.register_tree_attention
    with (
        patch.object(async_grpo_trainer, "register_tree_attention", register),
        patch.object(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: 1e12),
    ):
        yield


# Servers, and what happens to them


class Servers:
    """Two servers in processes of their own. `faults` is the part of messages that lose socket or server."""

    def __init__(self, faults: float) -> None:
        self._listeners = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(2)]
        self._processes = [self._start(listener) for listener in self._listeners]
        self.urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in self._listeners]
        self.faults = {"sockets": 0, "servers": 0}
        self._random = random.Random(0)
        # Half of what is lost is lost with a socket, half with a server, which takes all its sessions along.
        self._cut, self._kill = faults / 2, faults / 2 / (GROUPS * (GROUP_SIZE + 1) / 2)
        if faults:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True).start()
            proxied = [self._proxy(server) for server in range(2)]
            self.urls = [asyncio.run_coroutine_threadsafe(one, self._loop).result() for one in proxied]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, listener: socket.socket) -> "subprocess.Popen[bytes]":
        listener.set_inheritable(True)
        command = [sys.executable, __file__, "--serve", str(listener.fileno())]
        return subprocess.Popen(command, pass_fds=[listener.fileno()])

    async def _proxy(self, server: int) -> str:
        """The address of a relay to this server that loses connections."""

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(*self._listeners[server].getsockname())
            await asyncio.gather(
                self._pump(reader, there[1], server, writer),
                self._pump(there[0], writer),
                return_exceptions=True,
            )

        relaying = await asyncio.start_server(relay, "127.0.0.1", 0)
        return f"http://127.0.0.1:{relaying.sockets[0].getsockname()[1]}"

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        server: int | None = None,
        back: asyncio.StreamWriter | None = None,
    ) -> None:
        """Pass bytes on, until one end is closed. With `server`, what is passed on are messages to it."""
        is_open = False
        try:
            while message := await source.read(65536):
                target.write(message)
                if server is not None and back is not None and is_open:
                    chance = self._random.random()
                    if chance < self._cut:  # the server has the message, and its answer finds nobody
                        self.faults["sockets"] += 1
                        back.transport.abort()
                        break
                    if chance < self._cut + self._kill:
                        self.faults["servers"] += 1
                        self._processes[server].kill()
                        self._processes[server].wait()
                        self._processes[server] = self._start(self._listeners[server])
                is_open = True
        finally:
            target.close()


# The command line


def show(curve: Curve, steps: int) -> None:
    if len(curve) % 10 == 0:
        mean = sum(curve[-10:]) / 10
        print(f"step {len(curve):4} of {steps}   reward {mean:.2f}  {'█' * round(40 * mean)}", flush=True)


def draw(path: Path) -> None:
    """All curves of the file, smoothed, in a picture beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for label, run in json.loads(path.read_text()).items():
        rewards = run["rewards"]
        smooth = [
            sum(rewards[max(0, i - 9) : i + 1]) / len(rewards[max(0, i - 9) : i + 1])
            for i in range(len(rewards))
        ]
        axes.plot([(i + 1) / len(smooth) * run["steps"] for i in range(len(smooth))], smooth, label=label)
    axes.set(xlabel="training step", ylabel="mean reward, over ten steps", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path.with_suffix(".png"), bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--async", dest="is_async", action="store_true", help="use AsyncGRPOTrainer")
    parser.add_argument(
        "--faults", type=float, default=0.0, help="the part of messages that lose socket or server"
    )
    parser.add_argument(
        "--score-lost-as-zero", action="store_true", help="do not play again, and give reward 0"
    )
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--curves", type=Path, default=Path("curves.json"), help="where the curves are kept")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve is not None:
        serve(create_app(Buttons, sessions=256), listener=socket.socket(fileno=chosen.serve))
        return
    if chosen.is_async and chosen.score_lost_as_zero:
        parser.error("--score-lost-as-zero is for rollout_func")

    options: dict[str, Any] = {"format": PressFormat(), "max_turns": ROUNDS}
    if chosen.score_lost_as_zero:
        options |= {"attempts": 1, "client_options": {"reconnect_s": 0.0}}
    servers = Servers(chosen.faults)
    began, began_cpu = time.monotonic(), time.process_time()
    try:
        if chosen.is_async:
            curve, unscored = train_async(servers.urls, chosen.steps, options)
        else:
            curve, unscored = train(
                servers.urls, chosen.steps, options, lost_is_zero=chosen.score_lost_as_zero
            )
    finally:
        servers.close()

    label = "AsyncGRPOTrainer" if chosen.is_async else "GRPOTrainer"
    label += f", {chosen.faults:.0%} of messages lost" if chosen.faults else ""
    label += ", lost scored as 0" if chosen.score_lost_as_zero else ""
    tenth = max(1, len(curve) // 10)
    run = {
        "first": sum(curve[:tenth]) / tenth,
        "last": sum(curve[-tenth:]) / tenth,
        "cpu_s": time.process_time() - began_cpu,
        "wall_s": time.monotonic() - began,
        "steps": chosen.steps,
        "unscored": unscored,
        **servers.faults,
        "rewards": curve,
    }
    print(label, {name: round(value, 2) for name, value in run.items() if not isinstance(value, list)})
    runs = json.loads(chosen.curves.read_text()) if chosen.curves.exists() else {}
    chosen.curves.write_text(json.dumps({**runs, label: run}))
    draw(chosen.curves)
    print(f"the curve is in {chosen.curves.with_suffix('.png')}")


if __name__ == "__main__":
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    main()
