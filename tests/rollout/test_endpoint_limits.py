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

from envtorch.errors import EndpointFailed, PromptTooLong
from envtorch.rollout import (
    Completion,
    Ending,
    NotAnAction,
    OpenAIPolicy,
    OpenEpisode,
    Prompt,
    Rollouts,
    ToolFormat,
    Trajectory,
    TrajectoryFile,
    TrajectoryGroup,
)
from envtorch.rollout.endpoint_answers import read_chat
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


# Completions that are late, or cut.


@contextmanager
def answering(choice: dict[str, Any], *, pause_s: float = 0.0) -> Iterator[Any]:
    """An endpoint with one answer, given after a pause; what it was asked is in `.app.state.asked`."""
    app = FastAPI()
    app.state.asked = []

    async def complete(request: Request) -> Response:
        app.state.asked.append(await request.json())
        await asyncio.sleep(pause_s)
        if app.state.asked[-1].get("stream"):
            part = {"delta": choice["message"], "finish_reason": choice.get("finish_reason")}
            return events([{"choices": [part]}])
        return Response(json.dumps({"choices": [choice]}), media_type="application/json")

    app.add_api_route("/v1/chat/completions", complete, methods=["POST"])
    app.add_api_route("/v1/completions", complete, methods=["POST"])
    with running(app) as server:
        yield server


def said(model: Any, prompt: Prompt, **options: Any) -> Completion:
    async def run() -> Completion:
        async with OpenAIPolicy(f"{model.url}/v1", "tiny", **options) as policy:
            (completion,) = await policy([prompt])
            return completion

    return asyncio.run(run())


HELLO = Prompt([{"role": "user", "content": "hello"}])


def test_a_completion_that_is_not_there_in_time_is_not_sampled_again() -> None:
    with (
        answering({"message": {"content": "at last"}}, pause_s=4.0) as model,
        pytest.raises(EndpointFailed, match=r"no completion in 1 s, and is not asked again") as failed,
    ):
        said(model, HELLO, timeout_s=1.0)
    assert len(model.app.state.asked) == 1
    assert "timeout_s" in failed.value.details["next_step"]


@pytest.mark.parametrize(("reason", "is_cut"), [("length", True), ("stop", False), (None, False)])
def test_a_completion_that_was_cut_says_so(reason: str | None, is_cut: bool) -> None:
    with answering({"message": {"content": "and so"}, "finish_reason": reason}) as model:
        assert said(model, HELLO).is_cut is is_cut
        assert said(model, HELLO, stream=True).is_cut is is_cut
    with answering({"text": "and so", "token_ids": [1, 2], "finish_reason": reason}) as model:
        assert said(model, Prompt(HELLO.messages, ids=[7])).is_cut is is_cut


def test_half_a_letter_in_a_completion_does_not_end_the_rollouts() -> None:
    text = '{"number": 77} \ud83d'

    async def run(url: str, model: str) -> Trajectory:
        async with (
            OpenAIPolicy(f"{model}/v1", "tiny") as policy,
            Rollouts(DialEnv, url, policy, max_turns=2) as rollouts,
        ):
            return await rollouts.run(3)

    with dials() as game, answering({"message": {"content": text}}) as model:
        played = asyncio.run(run(game.url, model.url))
    assert (played.ending, len(played.turns)) == (Ending.MAX_TURNS, 2)
    assert played.messages[-2]["content"] == '{"number": 77} \ufffd'


def test_half_a_letter_in_a_prompt_is_sent() -> None:
    with answering({"message": {"content": "hello"}}) as model:
        assert said(model, Prompt([{"role": "user", "content": "\ud83d"}])).text == "hello"
    assert model.app.state.asked[0]["messages"][0]["content"] == "\ud83d"


def test_arguments_that_are_nested_too_deeply_are_no_action() -> None:
    arguments = '{"thing": ' + "[" * 100_000 + "]" * 100_000 + "}"
    call = {"id": "c1", "type": "function", "function": {"name": "put", "arguments": arguments}}
    completion = read_chat({"choices": [{"message": {"tool_calls": [call]}}]})
    with pytest.raises(NotAnAction, match="a tool call cannot be read"):
        ToolFormat().actions(completion)
