"""`RLMRunner`: a long task solved by a scripted policy with children, written down, shown, and replayed."""

import io
import json
import random
from pathlib import Path

import pytest
from rich.console import Console

from envtorch.envs.repl_env import (
    AsyncREPLEnv,
    Budget,
    OpenAICompatible,
    REPLAction,
    REPLObservation,
    RLMRunner,
    ScriptedModel,
)
from envtorch.envs.repl_env.events import Asked, Began, Ended, Event, Forked, Ran
from envtorch.envs.repl_env.language_models import Request
from envtorch.envs.repl_env.prompts import read_reply
from envtorch.envs.repl_env.trajectory import ReplayDiverged, read_trajectory
from envtorch.envs.repl_env.view import TreeView
from envtorch.sandbox import report
from envtorch.server import create_app
from tests.support import cpu_s, running

from .places import SMALL, make_environment
from .stub_server import Behaviour, Heard, stub_server

TASK = "How many needles are in the haystack?"
MEGABYTE = 1_000_000
NEEDLES = 1234


def haystack(seed: int) -> str:
    """More than a megabyte of generated text with needles in it, some of them broken."""
    chance = random.Random(seed)
    words = [chance.choice(["hay", "straw", "grass", "need", "needle-less", "pin"]) for _ in range(220_000)]
    for place in chance.sample(range(len(words)), NEEDLES):
        words[place] = "*needle*"
    return " ".join(words)


def divide_and_count(request: Request) -> str:
    """The root looks, then divides among four children; each divides once more; those count."""
    depth = request.node.count(".")
    if depth == 0 and len(request.messages) == 2:
        return "First a look.\n```repl\nprint(len(context), context[:40])\n```"
    if depth < 2:
        return (
            "Divide.\n```repl\n"
            "words = context.split(' ')\n"
            f"size = len(words) // {4 - 2 * depth} + 1\n"
            "parts = [' '.join(words[i : i + size]) for i in range(0, len(words), size)]\n"
            "counts = rlm_query_batched(['Count the needles in context.'] * len(parts), parts)\n"
            "print(counts)\n"
            "```\nThen add up.\n```repl\nFINAL(sum(map(int, counts)))\n```"
        )
    return "```repl\nn = context.count('*needle*')\n```\nFINAL_VAR(n)"


@pytest.fixture(autouse=True)
def forkable(sandboxes: None) -> None:
    if report().grade != "host":
        pytest.skip("a sandbox at container grade cannot be forked")


def test_needles_in_a_megabyte_with_recursion_and_the_same_again_from_the_record(tmp_path: Path) -> None:
    context = haystack(1)
    assert len(context) > MEGABYTE
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    runner = RLMRunner(ScriptedModel(divide_and_count), policy=SMALL, trajectory=first)
    result = runner.run(TASK, context=context)
    assert (result.answer, result.reason, result.reward) == (str(NEEDLES), "answered", 1.0)
    assert (result.usage["children"], result.usage["calls"]) == (12, 14)

    again = RLMRunner.replaying(first, policy=SMALL, trajectory=second).run(TASK, context=context)
    assert (again.answer, again.turns) == (result.answer, result.turns)

    def story(path: Path) -> dict[str, list[tuple[str, object]]]:
        """What each agent did, in order; children of one parent work at the same time."""
        told: dict[str, list[tuple[str, object]]] = {}
        for event in read_trajectory(path):
            match event:
                case Ran():
                    what: object = (event.code, event.stdout, event.final)
                case Asked():
                    what = (event.messages, event.answer)
                case Forked():
                    what = event.children
                case Ended():
                    what = event.answer
                case Began():
                    what = event.task
            told.setdefault(event.node, []).append((type(event).__name__, what))
        return told

    assert story(first) == story(second)
    assert len(story(first)) == 13
    assert all(json.loads(line)["node"] for line in first.read_text().splitlines())


def test_a_replay_that_goes_another_way_says_where(tmp_path: Path) -> None:
    written = tmp_path / "run.jsonl"
    RLMRunner(ScriptedModel(divide_and_count), policy=SMALL, trajectory=written).run(
        TASK, context="*needle* x"
    )
    with pytest.raises(ReplayDiverged, match="question 1 of agent 0"):
        RLMRunner.replaying(written, policy=SMALL).run("Another task", context="*needle* x")


def test_a_replay_whose_code_asks_something_else_says_so_though_the_code_goes_on(tmp_path: Path) -> None:
    def script(request: Request) -> str:
        code = "try:\n    llm_query(context)\nexcept RuntimeError as error:\n    print(error)\nFINAL('done')"
        return f"```repl\n{code}\n```" if len(request.messages) > 1 else "said"

    written = tmp_path / "run.jsonl"
    assert RLMRunner(ScriptedModel(script), policy=SMALL, trajectory=written).run("q", context="a").answer
    with pytest.raises(ReplayDiverged, match="question 2 of agent 0 was 'a', and is 'b'"):
        RLMRunner.replaying(written, policy=SMALL).run("q", context="b")


def test_the_root_is_asked_for_what_it_has_when_its_turns_are_over() -> None:
    def script(request: Request) -> str:
        return "it was 7" if "no turns left" in request.messages[-1]["content"] else "Hm."

    result = RLMRunner(ScriptedModel(script), policy=SMALL, max_iterations=2).run("q")
    assert (result.answer, result.reason, result.turns, result.reward) == ("it was 7", "out of turns", 2, 1.0)


def test_a_budget_that_is_spent_ends_the_run_without_an_answer() -> None:
    model = ScriptedModel(lambda request: "```repl\nprint(1)\n```")
    result = RLMRunner(model, policy=SMALL, budget=Budget(calls=3)).run("q")
    assert result.answer is None
    assert "3 calls" in result.reason
    assert result.usage["calls"] == 3


def test_it_plays_on_a_server_too() -> None:
    app = create_app(make_environment, REPLAction, REPLObservation)
    script = ScriptedModel(
        lambda request: "```repl\nloud = llm_query(context)\nprint(loud)\n```\nFINAL_VAR(loud)"
    )
    with running(app) as server:
        runner = RLMRunner(script, env=lambda: AsyncREPLEnv(server.url))
        assert runner.run("Shout.", context="hello").answer == "HELLO"


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_behind_an_address(stream: bool) -> None:
    def behave(heard: Heard) -> Behaviour:
        if heard.prompt.startswith("Cats? "):
            return Behaviour("yes" if "cat" in heard.prompt else "no")
        return Behaviour(
            "```repl\nlines = context.splitlines()\n"
            "said = llm_query_batched([f'Cats? {line}' for line in lines])\n"
            "FINAL(said.count('yes'))\n```"
        )

    with stub_server(behave) as stub:
        runner = RLMRunner(OpenAICompatible(stub.url, "m", stream=stream), policy=SMALL)
        for _ in range(2):  # its connections are opened anew for each run
            result = runner.run("How many lines are about cats?", context="a cat\na dog\ncats\nno")
            assert (result.answer, result.usage["calls"], result.usage["prompt_tokens"]) == ("2", 5, 55)


def test_the_tree_is_drawn_while_it_grows() -> None:
    screen, paper = (
        Console(file=io.StringIO(), force_terminal=terminal, width=120) for terminal in (True, False)
    )
    drawn: list[str] = []
    with TreeView(screen) as view:

        def observe(event: Event) -> None:
            view(event)
            with paper.capture() as capture:
                paper.print(view.render())
            drawn.append(capture.get())

        runner = RLMRunner(ScriptedModel(divide_and_count), policy=SMALL, observer=observe)
        assert runner.run(TASK, context="*needle* " * 100).answer == "100"
    sizes = [len(frame.splitlines()) for frame in drawn]
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] == 13
    assert any("● 0.2" in frame for frame in drawn)
    assert any("waiting for 4 children" in frame for frame in drawn)
    assert drawn[-1].startswith("✔ 0 = 100  2 turns, 3 blocks  How many needles are in the haystack?\n")


@pytest.mark.parametrize(
    ("reply", "blocks"),
    [
        ("```repl\nx = 1\n```", ["x = 1\n"]),
        ("a\n```python\nx\n```\nb\n```py\ny\n```", ["x\n", "y\n"]),
        ("```repl\nnever closed", []),
        ("```json\n{}\n```", []),
        ("```\nx\n```", []),
        ("inline ```repl x``` no", []),
        ("```repl\ns = '''\n``` not the end\n'''\n```", ["s = '''\n``` not the end\n'''\n"]),
    ],
)
def test_the_blocks_of_a_reply(reply: str, blocks: list[str]) -> None:
    assert list(read_reply(reply).blocks) == blocks


def test_prose_is_what_is_left_of_a_reply_without_its_blocks() -> None:
    assert read_reply("a\n```py\nx\n```\nb\n```py\ny\n``` \nc\n```py\nz").prose == "a\n\nb\n\nc\n```py\nz"


def test_a_reply_that_only_begins_blocks_is_read_in_one_pass() -> None:
    def read(blocks: int) -> None:
        assert not read_reply("```python\n" * blocks + "x" * blocks).blocks

    assert cpu_s(lambda: read(16_000)) < 60 * max(cpu_s(lambda: read(2_000)), 0.0001)
