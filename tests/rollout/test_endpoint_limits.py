"""What a policy's endpoint does not complete: prompts that are too long, answers that are cut or too late."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from envtorch.errors import PromptTooLong
from envtorch.rollout import (
    Completion,
    Ending,
    OpenAIPolicy,
    OpenEpisode,
    Rollouts,
    Trajectory,
    TrajectoryFile,
    TrajectoryGroup,
)
from tests.rollout.dials import DialEnv, dials
from tests.support import Running, running

# Conversations that outgrow the model's context.

REFUSALS: dict[str, dict[str, Any]] = {
    "OpenAI": {"error": {"message": "Please reduce the length.", "code": "context_length_exceeded"}},
    "vLLM": {"message": "This model's maximum context length is 2048 tokens. However, you requested 2100."},
    "newer vLLM": {
        "error": {"message": "The decoder prompt (length 9) is longer than the maximum model length"}
    },
    "SGLang": {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."},
    "llama.cpp": {
        "error": {"code": 400, "type": "exceed_context_size_error", "message": "request (9 tokens)"}
    },
}


def events(told: Sequence[dict[str, Any]]) -> Response:
    lines = [json.dumps(event) for event in told]
    return StreamingResponse(iter([f"data: {line}\n\n" for line in [*lines, "[DONE]"]]))


@contextmanager
def of_small_context(refusal: dict[str, Any], turns: int, *, streams: bool = False) -> Iterator[Running]:
    """An endpoint that has room for so many turns, and counts upwards."""
    app = FastAPI()

    async def complete(request: Request) -> Response:
        body = await request.json()
        said = sum(message["role"] == "assistant" for message in body["messages"])
        text = json.dumps({"number": said})
        if said >= turns:
            return events([{"error": refusal}]) if streams else JSONResponse(refusal, 400)
        if body.get("stream"):
            return events([{"choices": [{"delta": {"content": text}}]}])
        return JSONResponse({"choices": [{"message": {"content": text}}]})

    app.add_api_route("/v1/chat/completions", complete, methods=["POST"])
    with running(app) as server:
        yield server


def play_group(url: str, model: Running, **options: Any) -> list[Trajectory]:
    async def run() -> list[Trajectory]:
        async with (
            OpenAIPolicy(f"{model.url}/v1", "tiny", attempts=1, **options) as policy,
            Rollouts(DialEnv, url, policy) as rollouts,
        ):
            return [member async for group in rollouts.groups(range(6), size=2) for member in group]

    return asyncio.run(run())


@pytest.mark.parametrize("server", list(REFUSALS))
@pytest.mark.parametrize("stream", [False, True])
def test_an_episode_that_outgrows_the_context_ends_alone(server: str, stream: bool) -> None:
    with dials() as game, of_small_context(REFUSALS[server], turns=5) as model:
        played = play_group(game.url, model, stream=stream)
    assert {one.cause for one in played} == {"done", "policy: PromptTooLong"}
    for one in played:
        assert one.reward is not None
        assert one.messages[-1]["role"] == ("assistant" if one.ending is Ending.DONE else "user")
        assert len(one.turns) == 5 or one.ending is Ending.DONE


def test_a_stream_that_tells_of_a_long_prompt_ends_its_episode() -> None:
    with dials() as game, of_small_context(REFUSALS["SGLang"], turns=5, streams=True) as model:
        played = play_group(game.url, model, stream=True)
    assert {one.cause for one in played} == {"done", "policy: PromptTooLong"}


def test_a_task_whose_first_prompt_is_too_long_has_no_reward(tmp_path: Path) -> None:
    with dials() as game, of_small_context(REFUSALS["vLLM"], turns=0) as model:
        played = play_group(game.url, model)
    assert {(one.cause, one.reward) for one in played} == {("environment: PromptTooLong", None)}
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    file.add(TrajectoryGroup(played[0].task, (played[0],)))
    assert [one.cause for one in file] == ["environment: PromptTooLong"]


def test_an_open_episode_takes_no_turn_for_a_prompt_that_is_too_long() -> None:
    async def run(url: str) -> None:
        async with await OpenEpisode.begin(DialEnv, url, 3) as episode:
            heard = await episode.act(Completion('{"number": 0}'))
            assert [message["role"] for message in heard] == ["user"]
            assert await episode.act(Completion(refusal=PromptTooLong("it is too long"))) == ()
            assert episode.over is not None
            assert (episode.over.ending, len(episode.trajectory().turns)) == (Ending.POLICY, 1)

    with dials() as game:
        asyncio.run(run(game.url))
