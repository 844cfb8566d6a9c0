"""`envtorch eval` against an endpoint that is served here."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from envtorch.cli.evaluated import ModelChoice, directory_of
from tests.envs.coding_env.conftest import why_no_sandbox
from tests.rollout.dials import dials, lose
from tests.support import PATIENCE_S, Running, eventually, running

ENVTORCH = [sys.executable, "-m", "envtorch.cli"]


@contextmanager
def models(answer: Any, *, pause_s: float = 0.0) -> Iterator[Running]:
    """An endpoint of one model, `tiny`, that says `answer(messages)`."""
    app = FastAPI()
    app.state.asked = 0

    async def complete(request: Request) -> JSONResponse:
        body = await request.json()
        app.state.asked += 1
        await run_in_threadpool(time.sleep, pause_s)
        message = {"role": "assistant", "content": await run_in_threadpool(answer, body["messages"])}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return JSONResponse({"choices": [{"message": message}], "usage": usage})

    async def listed() -> JSONResponse:
        return JSONResponse({"data": [{"id": "tiny"}]})

    app.add_api_route("/v1/chat/completions", complete, methods=["POST"])
    app.add_api_route("/v1/models", listed)
    with running(app) as server:
        yield server


def chosen(where: str, name: str | None) -> ModelChoice:
    return ModelChoice(where, name, 1.0, 16, False, None)


def counting(messages: list[dict[str, Any]]) -> str:
    return json.dumps({"number": sum(message["role"] == "assistant" for message in messages)})


def evaluate(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*ENVTORCH, "eval", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_model_is_evaluated_and_reported(tmp_path: Path) -> None:
    options = ["--tasks", "4", "--samples", "2", "--max-turns", "3", "--pass-at", "0.5", "--price-in", "2"]
    with dials() as server, models(counting) as model:
        common = [server.url, "--model", f"{model.url}/v1", *options, "--output", "results"]
        done = evaluate(*common, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        asked = model.app.state.asked
        shown = evaluate(*common, cwd=tmp_path)
        assert model.app.state.asked == asked, "what was played is not played again"
    told = json.loads(done.stdout)
    assert (told["tasks"], told["samples"], told["settings"]["model"]) == (4, 8, "tiny")
    assert set(told["pass_at"]) == {"1", "2"}
    assert told["cost"] == pytest.approx(2.0 * told["tokens_read"] / 1_000_000)
    assert "pass@1" in shown.stdout
    assert "95 % interval" in shown.stdout
    assert "results/report.html" in shown.stdout
    assert (tmp_path / "results" / "report.html").read_text().startswith("<!doctype html>")


def test_lost_samples_are_an_exit_code_and_are_played_again_by_the_same_command(tmp_path: Path) -> None:
    is_losing = True
    with dials() as server:

        def answer(messages: list[dict[str, Any]]) -> str:
            if is_losing and "game 1" in messages[1]["content"]:
                asyncio.run(lose_all(server))
            return counting(messages)

        with models(answer) as model:
            options = ["--tasks", "2", "--samples", "2", "--concurrency", "2", "--output", "results"]
            command = [server.url, "--model", f"{model.url}/v1", *options, "--json"]
            incomplete = evaluate(*command, cwd=tmp_path)
            is_losing = False
            complete = evaluate(*command, cwd=tmp_path)
    assert incomplete.returncode == 3, incomplete.stderr
    assert "Incomplete: 2 of 4 samples were lost" in incomplete.stderr
    assert "The same command plays their tasks again." in incomplete.stderr
    told = json.loads(incomplete.stdout)
    assert (told["scored"], told["endings"]["lost: SessionLost"]) == (2, 2)
    assert complete.returncode == 0, complete.stderr
    assert json.loads(complete.stdout)["scored"] == 4
    assert (tmp_path / "results" / "report.html").exists()


async def lose_all(server: Running) -> None:
    for place in range(len(server.sessions.all())):
        await lose(server, place)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--model", "gpt"], "neither a URL nor scripted"),
        (["--model", "scripted:absent.py:play"], "there is no file absent.py"),
        (["--model", "scripted:script.py:nothing"], "script.py has no function 'nothing': it has say"),
        (["--model", "scripted:script.py:say", "--tasks", "0"], "at least 1"),
        (["--model", "scripted:script.py:say", "--tasks", "absent.jsonl"], "there is no file absent.jsonl"),
        (["--model", "scripted:script.py:say", "--tasks", "bad.jsonl"], "bad.jsonl, line 1"),
        (["--model", "scripted:script.py:say", "--split", "test"], "has no tasks, and no splits"),
        (["--model", "scripted:script.py:say", "--score", "script.py:say"], "write it as `async def`"),
        (["--model", "scripted:script.py:say", "--output", ".", "--fresh"], "holds no evaluation"),
    ],
)
def test_a_wrong_command_line_is_refused_in_a_sentence(
    tmp_path: Path, arguments: list[str], wrong: str, module_server: Running
) -> None:
    (tmp_path / "script.py").write_text("def say(messages):\n    return 'x'\n")
    (tmp_path / "bad.jsonl").write_text("{\n")
    done = evaluate(module_server.url, *arguments, cwd=tmp_path)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert wrong in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("target", "model", "name"),
    [
        ("echo_env", chosen("http://h:1/v1", "Qwen/Qwen3-0.6B"), "echo_env-Qwen-Qwen3-0.6B"),
        ("http://127.0.0.1:8000/", chosen("http://h:1/v1", "tiny"), "127.0.0.1-8000-tiny"),
        (".", chosen("http://h:1/v1", "tiny"), "my_game-tiny"),
        ("../my_game", chosen("http://h:1/v1", "tiny"), "my_game-tiny"),
        ("./play.py:Game", chosen("scripted:bots/script.py:say", None), "play-Game-bots-script-say"),
        ("package.app:app", chosen("http://h:1/v1", "tiny"), "package.app-app-tiny"),
    ],
)
def test_the_results_are_called_after_the_target_and_the_model(
    target: str, model: ModelChoice, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_game").mkdir()
    (tmp_path / "my_game/play.py").touch()
    monkeypatch.chdir(tmp_path / "my_game")
    assert directory_of(target, model) == Path("evals") / name


def test_the_results_are_called_after_the_endpoints_only_model(tmp_path: Path) -> None:
    with dials() as server, models(counting) as model:
        options = ["--tasks", "1", "--samples", "1", "--max-turns", "1"]
        done = evaluate(server.url, "--model", f"{model.url}/v1", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = (tmp_path / "evals").iterdir()
    assert found.name == f"{server.url.removeprefix('http://').replace(':', '-')}-tiny"
    assert {"report.html", "report.json", "trajectories.jsonl", "settings.json", "runs.jsonl"} <= {
        path.name for path in found.iterdir()
    }
    page = (Path(__file__).parents[2] / "docs/guides/evaluation.md").read_text()
    assert all(f"| `{path.name}` |" in page for path in found.iterdir()), "the table lists every file"


def test_a_scripted_model_that_raises_is_told_with_its_own_frames(
    tmp_path: Path, module_server: Running
) -> None:
    (tmp_path / "script.py").write_text("def boom(messages):\n    raise ValueError('model is sad')\n")
    done = evaluate(module_server.url, "--model", "scripted:script.py:boom", "--tasks", "1", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    told = "the scripted model script.py:boom raised ValueError: model is sad (script.py, line 2)"
    assert told in done.stderr
    frames = [line for line in done.stderr.splitlines() if line.strip().startswith("File ")]
    assert len(frames) == 1, done.stderr
    assert "Next: correct the line" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--score", "script.py:sad"],
            "the scorer script.py:sad raised ValueError: no score (script.py, line 4)",
        ),
        (["--score", "script.py:forgetful"], "the scorer script.py:forgetful returned NoneType"),
        (["--model", "scripted:script.py:silent"], "script.py:silent returned NoneType: it must return text"),
        (["--output", "script.py/results"], "script.py/results cannot be written: Not a directory"),
        (["--output", "other"], "other/settings.json cannot be read: it is no JSON object"),
    ],
)
def test_what_goes_wrong_meanwhile_is_one_sentence(
    tmp_path: Path, module_server: Running, options: list[str], told: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "settings.json").write_text("[]")
    (tmp_path / "script.py").write_text(
        'def say(messages):\n    return \'{"message": "hello"}\'\n'
        "async def sad(candidate):\n    raise ValueError('no score')\n"
        "async def forgetful(candidate):\n    candidate.trajectory\n"
        "def silent(messages):\n    pass\n"
    )
    common = ["--model", "scripted:script.py:say", "--tasks", "1", "--samples", "1", "--max-turns", "1"]
    done = evaluate(module_server.url, *common, *options, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stderr
    assert "envtorch/" not in done.stderr, "none of our own frames"
    assert "Next: " in done.stderr


def test_a_model_that_does_not_answer_is_not_taken_for_the_environments_server(
    tmp_path: Path, module_server: Running
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        done = evaluate(module_server.url, "--model", url, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Next: see that the model's endpoint is up" in done.stderr
    assert "envtorch serve" not in done.stderr


@pytest.fixture(scope="module")
def module_server() -> Iterator[Running]:
    with dials() as server:
        yield server


def code(messages: list[dict[str, Any]]) -> str:
    turn = sum(message["role"] == "assistant" for message in messages)
    return f"```python\nprint({turn} * 7)\n```"


SCORER = """
async def score(candidate):
    async with candidate.fork() as env:
        result = await env.step({"code": "import random; print(random.random() < 0.5)"})
        return float("True" in result.observation["stdout"])
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_sandbox()), reason=str(why_no_sandbox()))
def test_coding_env_is_evaluated_interrupted_and_gone_on_with_to_the_same_report(tmp_path: Path) -> None:
    (tmp_path / "scorer.py").write_text(SCORER)
    options = ["--tasks", "12", "--samples", "2", "--max-turns", "3", "--score", "scorer.py:score"]

    def command(name: str, url: str) -> list[str]:
        few = ["--concurrency", "6", "--output", name, "--json"]
        return [*ENVTORCH, "eval", "coding_env", "--model", f"{url}/v1", *options, *few]

    with models(code, pause_s=0.5) as model:
        subprocess.run(command("whole", model.url), cwd=tmp_path, check=True, timeout=PATIENCE_S)
        again = command("broken", model.url)
        interruptible = ["env", "--default-signal=INT", *again]  # also where the tests run in the background
        child = subprocess.Popen(interruptible, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        lines = tmp_path / "broken" / "trajectories.jsonl"
        eventually(lambda: lines.exists() and lines.stat().st_size > 0, "a group was played")
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 130, told
        assert "goes on where it was" in told
        assert not (tmp_path / "broken" / "report.json").exists(), "it was interrupted before its end"
        subprocess.run(again, cwd=tmp_path, check=True, timeout=PATIENCE_S)
    whole, broken = (
        json.loads((tmp_path / name / "report.json").read_text()) for name in ("whole", "broken")
    )
    del whole["time"], broken["time"]
    assert broken == whole
    assert whole["scored"] == 24
    assert 0 < whole["pass_at"]["1"]["value"] < 1
