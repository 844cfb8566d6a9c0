"""`envtorch play`, driven in a real terminal; its form and its branches without one."""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from envtorch import GenericEnvClient, create_app
from envtorch.cli.playing.branches import Game
from envtorch.cli.playing.form import FormFieldKind, action_of, fields_of
from envtorch.errors import InvalidAction, Unsupported
from envtorch.recording import find_recordings
from envtorch.types import StepResult
from tests.cli.environments import Work
from tests.cli.terminal import Terminal
from tests.recording.environments import Walk
from tests.support import PATIENCE_S, running

ROOT = Path(__file__).parents[2]
PLAY = [sys.executable, "-m", "envtorch.cli", "play"]
needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed: apt install tmux"
)

FILLED: dict[str, Any] = {
    "what": "cut",
    "carefully": True,
    "times": "2",
    "tool.name": "saw",
    "tool.strength": "0.25",
}


def test_a_form_has_a_field_of_the_right_kind_for_everything() -> None:
    fields = {field.label: field for field in fields_of(Work.model_json_schema())}
    assert {label: field.kind for label, field in fields.items()} == {
        "what": FormFieldKind.CHOICE,
        "carefully": FormFieldKind.FLAG,
        "times": FormFieldKind.INTEGER,
        "tool.name": FormFieldKind.CHOICE,
        "tool.strength": FormFieldKind.NUMBER,
        "key": FormFieldKind.SECRET,
        "marks": FormFieldKind.JSON,
    }
    assert fields["what"].required
    assert list(fields["tool.name"].choices) == ["hammer", "saw"]
    assert fields["times"].hint == "1 .. 9 (optional)"


def test_a_filled_form_is_an_action() -> None:
    fields = fields_of(Work.model_json_schema())
    action = action_of(fields, {**FILLED, "key": "", "marks": "[1, 2]"})
    assert action == {
        "what": "cut",
        "carefully": True,
        "times": 2,
        "tool": {"name": "saw", "strength": 0.25},
        "marks": [1, 2],
    }
    Work.model_validate(action)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"times": "two"}, "times: 'two' is not a whole number"),
        ({"marks": "[1"}, "is not JSON"),
        ({"what": None}, "what is needed"),
    ],
)
def test_what_cannot_be_read_is_told_by_field(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidAction, match=complaint):
        action_of(fields_of(Work.model_json_schema()), {**FILLED, **changes})


@pytest.mark.parametrize(("capacity", "how"), [(32, "kept"), (1, "played again")])
def test_the_way_back_is_a_kept_session_or_the_same_moves_again(capacity: int, how: str) -> None:
    async def game(url: str) -> None:
        played = Game(url)
        await played.open()
        try:
            await played.reset({"seed": 3})
            for by in (1, 2, 3):
                await played.step({"by": by})
            then = played.branch.turns[2]
            assert how in await played.go_back(2)
            assert played.branch.turns[-1] == then
            again = await played.step({"by": 5})
            assert again.observation["place"] == then.observation["place"] + 5
            with pytest.raises(Unsupported, match="earlier line"):
                await played.go_back(3)
        finally:
            await played.close()

    with running(create_app(Walk, max_concurrent_envs=capacity)) as server:
        asyncio.run(game(server.url))
        assert server.sessions.active == 0, "nothing is left behind"


def test_branches_go_their_own_way() -> None:
    async def game(url: str) -> None:
        played = Game(url)
        await played.open()
        try:
            await played.reset({"seed": 3})
            await played.step({"by": 1})
            await played.fork()
            await played.step({"by": 7})
            played.current = 0
            await played.step({"by": 2})
            places = [branch.turns[-1].observation["place"] for branch in played.branches]
            assert places == [3, 8]
        finally:
            await played.close()

    with running(create_app(Walk, max_concurrent_envs=32)) as server:
        asyncio.run(game(server.url))


@needs_tmux
def test_a_game_in_the_terminal() -> None:
    command = [*PLAY, "tests.cli.workshop:app", "--seed", "7", "--reset", '{"level": 3}']
    with Terminal(command, cwd=ROOT) as terminal:
        terminal.wait_for("A clean bench, level 3, seed 7.", "0 steps", "tool.strength", "▸ what *")
        terminal.press("F5")
        terminal.wait_for("cut roughly with the hammer at 0.5", "1 step ", "return 1")
        terminal.press("Tab")
        terminal.wait_for("▸ carefully")
        terminal.press("Space", "Tab")
        terminal.wait_for("▸ times")
        terminal.write("4")
        terminal.wait_for("times 4")
        terminal.press("F5")
        screen = terminal.wait_for("cut carefully with the hammer", "2 steps", "return 5")
        assert "what=cut, carefully=true" in screen
        terminal.keep("play")
        terminal.write("50")
        terminal.press("F5")
        terminal.wait_for("times: Input should be less than or equal to 9")
        terminal.keep("play-error")
        terminal.press("F6")
        terminal.wait_for("fork 1   2 steps   return 5")
        terminal.press("BSpace")
        terminal.wait_for("times 5 ")
        terminal.press("F5")
        terminal.wait_for("3 steps", "the episode is over")
        terminal.keep("play-fork")
        terminal.press("F8")
        terminal.wait_for("main   2 steps")
        terminal.press("PPage")
        terminal.wait_for("observation 1")
        terminal.press("F7")
        terminal.wait_for("back at step 1: the session kept from then")
        terminal.press("C-q")
        terminal.wait_for("exited with 0")


@pytest.mark.slow
@needs_tmux
def test_a_recording_in_the_terminal(tmp_path: Path) -> None:
    app = create_app(Walk, max_concurrent_envs=8, record=tmp_path)
    with running(app) as server, GenericEnvClient(server.url) as env:
        env.reset(seed=1)
        env.step({"by": 4})
        (copy,) = env.fork(1)
        with copy:
            result: StepResult[Any] = copy.step({"by": 6})
        assert result.done
    (path,) = find_recordings(tmp_path)
    with Terminal([*PLAY, str(path)], cwd=ROOT) as terminal:
        terminal.wait_for("episode 1 of 2", "seed 1", "observation 0", "by=4")
        terminal.press("Down")
        terminal.wait_for("observation 1", "place 4")
        terminal.press("Right")
        terminal.wait_for("a fork of 1 at step 1", "observation 0")
        terminal.press("Down", "Down")
        terminal.wait_for("observation 2", "place 10", "the episode is over")
        terminal.keep("play-recording")
        terminal.press("q")
        terminal.wait_for("exited with 0")


def test_what_cannot_be_played_says_so() -> None:
    import subprocess

    for arguments, code, told in (
        (["nope"], 2, "names nothing"),
        (["echo_env", "--reset", "[1]"], 2, "JSON object"),
        (["http://127.0.0.1:9"], 3, "envtorch serve TARGET"),
        (["missing.jsonl"], 2, "there is no recording"),
    ):
        done = subprocess.run(
            [*PLAY, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT
        )
        assert (done.returncode, told in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr
