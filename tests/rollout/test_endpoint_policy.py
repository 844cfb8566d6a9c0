"""A policy behind an OpenAI-compatible endpoint, served here."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from envtorch.client import MCPToolClient
from envtorch.errors import ConfigurationError, ConnectFailed
from envtorch.rollout import Ending, OpenAIPolicy, Prompt, Rollouts, Task, Trajectory
from envtorch.server import create_app
from envtorch.tools import CallToolAction, CallToolObservation
from tests.rollout.dials import END, LETTERS, DialEnv, dials
from tests.support import Running, running
from tests.tools.environments import Basket

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@contextmanager
def endpoint(answer: Answer, refusals: list[tuple[int, dict[str, str]]] | None = None) -> Iterator[Any]:
    """An endpoint whose first answers are `refusals`; what it was asked is in `.state.asked`."""
    app = FastAPI()
    app.state.asked = []
    left = list(refusals or ())

    async def complete(request: Request) -> JSONResponse:
        body = await request.json()
        app.state.asked.append((request.url.path, body, request.headers.get("authorization")))
        if left:
            status, headers = left.pop(0)
            return JSONResponse({"error": "not now"}, status, headers)
        return JSONResponse({"choices": [answer(body)]})

    app.add_api_route("/v1/chat/completions", complete, methods=["POST"])
    app.add_api_route("/v1/completions", complete, methods=["POST"])
    with running(app) as server:
        yield server


def counting_up(body: dict[str, Any]) -> dict[str, Any]:
    said = sum(message["role"] == "assistant" for message in body["messages"])
    return {"message": {"role": "assistant", "content": json.dumps({"number": said})}}


def in_tokens(body: dict[str, Any]) -> dict[str, Any]:
    said = body["prompt"].count(END)
    ids = [*LETTERS.encode(json.dumps({"number": said})), END]
    return {"text": LETTERS.text(ids), "token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}


def shopping(body: dict[str, Any]) -> dict[str, Any]:
    if any(message["role"] == "tool" for message in body["messages"]):
        return {"message": {"role": "assistant", "content": "Done."}}
    function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"thing": "apple"}'}
    call = {"id": "c1", "type": "function", "function": function}
    return {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}


def play(url: str, model: Running, client: Any = DialEnv, task: Any = 3, **options: Any) -> Trajectory:
    async def run() -> Trajectory:
        async with (
            OpenAIPolicy(f"{model.url}/v1", "tiny", api_key="secret", request={"top_p": 0.9}) as policy,
            Rollouts(client, url, policy, **options) as rollouts,
        ):
            return await rollouts.run(task)

    return asyncio.run(run())


def test_an_episode_is_played_by_a_chat_endpoint() -> None:
    with dials() as server, endpoint(counting_up) as model:
        played = play(server.url, model)
    assert played.ending is Ending.DONE
    path, body, authorization = model.app.state.asked[0]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer secret")
    assert (body["model"], body["top_p"]) == ("tiny", 0.9)
    assert len(model.app.state.asked) == len(played.turns)


def test_token_prompts_get_token_ids_and_log_probabilities() -> None:
    with dials() as server, endpoint(in_tokens) as model:
        played = play(server.url, model, template=LETTERS)
    assert played.ending is Ending.DONE
    assert {path for path, _, _ in model.app.state.asked} == {"/v1/completions"}
    said = [
        logprob
        for logprob, by_policy in zip(played.tokens.logprobs, played.tokens.mask, strict=True)
        if by_policy
    ]
    assert said
    assert set(said) == {-0.5}


def test_tools_are_offered_and_called() -> None:
    app = create_app(Basket, CallToolAction, CallToolObservation, max_concurrent_envs=4)
    with running(app) as server, endpoint(shopping) as model:
        played = play(server.url, model, MCPToolClient, Task(prompt="Buy fruit."))
    assert (played.ending, played.reward) == (Ending.DONE, 1.0)
    assert [m["role"] for m in played.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_call_whose_arguments_are_no_json_is_the_policys_mistake() -> None:
    def broken(body: dict[str, Any]) -> dict[str, Any]:
        call = {"id": "c1", "type": "function", "function": {"name": "put", "arguments": '{"thing": '}}
        return {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}

    app = create_app(Basket, CallToolAction, CallToolObservation, max_concurrent_envs=4)
    with running(app) as server, endpoint(broken) as model:
        played = play(server.url, model, MCPToolClient, Task(prompt="Buy fruit."))
    assert (played.ending, played.cause) == (Ending.POLICY, "policy: NotAnAction")


def test_a_busy_endpoint_is_asked_again() -> None:
    wait = {"retry-after": "0"}
    with dials() as server, endpoint(counting_up, [(429, wait), (503, wait), (500, wait)]) as model:
        played = play(server.url, model)
    assert played.ending is Ending.DONE
    assert len(model.app.state.asked) == len(played.turns) + 3


def ask(model_url: str, **options: Any) -> None:
    async def run() -> None:
        async with OpenAIPolicy(f"{model_url}/v1", "tiny", **options) as policy:
            await policy([Prompt([{"role": "user", "content": "hello"}])])

    asyncio.run(run())


def test_an_endpoint_that_refuses_says_why_at_once() -> None:
    with endpoint(counting_up, [(400, {})]) as model, pytest.raises(ConfigurationError, match="not now"):
        ask(model.url)
    assert len(model.app.state.asked) == 1


def test_an_endpoint_that_never_answers_is_given_up() -> None:
    wait = {"retry-after": "0"}
    with (
        endpoint(counting_up, [(503, wait)] * 9) as model,
        pytest.raises(ConnectFailed, match="3 times: 503"),
    ):
        ask(model.url, attempts=3)
    assert len(model.app.state.asked) == 3
    with pytest.raises(ConnectFailed, match="1 times"):
        ask(model.url, attempts=1)  # it is gone by now
