"""A policy behind an OpenAI-compatible endpoint, served here."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from hypothesis import given
from hypothesis import strategies as st

from envtorch.client import MCPToolClient
from envtorch.errors import ConfigurationError, EndpointFailed
from envtorch.rollout import Ending, OpenAIPolicy, Prompt, Rollouts, Task, Trajectory
from envtorch.rollout.endpoint_answers import StreamedAnswer, read_chat
from envtorch.server import create_app
from envtorch.tools import CallToolAction, CallToolObservation
from tests.rollout.dials import END, LETTERS, DialEnv, dials
from tests.support import Running, running
from tests.tools.environments import Basket

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@contextmanager
def endpoint(
    answer: Answer,
    refusals: list[tuple[int, dict[str, str]]] | None = None,
    usage: dict[str, int] | None = None,
) -> Iterator[Any]:
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
        return JSONResponse({"choices": [answer(body)], "usage": usage})

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
        pytest.raises(EndpointFailed, match="3 times: 503"),
    ):
        ask(model.url, attempts=3)
    assert len(model.app.state.asked) == 3
    with pytest.raises(EndpointFailed, match="1 times"):
        ask(model.url, attempts=1)  # it is gone by now


# Streams, rates, and tokens of chat endpoints.


def events_of(answer: dict[str, Any]) -> list[str]:
    """A whole answer, as a server streams it: a few letters and tokens an event."""
    choice = answer["choices"][0]
    message = choice.get("message") or {}
    letters = ["", *(message.get("content") or "")]
    parts: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": part}} for part in letters]
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        named = {"index": place, "id": call["id"], "function": {"name": function["name"], "arguments": ""}}
        parts.append({"delta": {"tool_calls": [named]}})
        parts += [
            {"delta": {"tool_calls": [{"index": place, "function": {"arguments": letter}}]}}
            for letter in function["arguments"]
        ]
    for place, token in enumerate(choice.get("token_ids") or ()):
        part: dict[str, Any] = parts[place] if place < len(parts) else {"delta": {}}
        part["token_ids"] = [token]
        part["logprobs"] = {"content": [choice["logprobs"]["content"][place]]}
        if place >= len(parts):
            parts.append(part)
    events: list[dict[str, Any]] = [{"choices": [{"index": 0, **part}]} for part in parts]
    first: dict[str, Any] = {"choices": [], "prompt_token_ids": answer.get("prompt_token_ids")}
    last: dict[str, Any] = {"choices": [], "usage": answer.get("usage")}
    return [json.dumps(event) for event in (first, *events, last)]


@contextmanager
def streaming(answer: Callable[[dict[str, Any]], dict[str, Any]], broken: int = 0) -> Iterator[Any]:
    """An endpoint that streams what it is asked to stream; its first `broken` streams are cut off."""
    app = FastAPI()
    app.state.asked = []

    async def complete(request: Request) -> Response:
        body = await request.json()
        app.state.asked.append(body)
        whole = answer(body)
        if not body.get("stream"):
            return JSONResponse(whole)
        events = events_of(whole)
        is_cut = len(app.state.asked) <= broken
        lines = [f"data: {event}\n\n" for event in (events[:-2] if is_cut else [*events, "[DONE]"])]
        return StreamingResponse(iter([": hello\n\n", *lines]), media_type="text/event-stream")

    async def models() -> JSONResponse:
        return JSONResponse({"data": [{"id": "tiny"}]})

    app.add_api_route("/v1/chat/completions", complete, methods=["POST"])
    app.add_api_route("/v1/models", models)
    with running(app) as server:
        yield server


def vllm(body: dict[str, Any]) -> dict[str, Any]:
    """What vLLM answers a chat whose token ids and log-probabilities are wanted."""
    prompt = LETTERS.begin(body["messages"], ())
    text = json.dumps({"number": sum(message["role"] == "assistant" for message in body["messages"])})
    ids = LETTERS.encode(text)
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
    if body.get("return_token_ids"):
        choice["token_ids"] = ids
        choice["logprobs"] = {"content": [{"token": chr(id), "logprob": -id / 128} for id in ids]}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
    return {"choices": [choice], "prompt_token_ids": prompt, "usage": usage}


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_endpoints_own_tokens_are_the_trajectorys(stream: bool) -> None:
    async def run(url: str, model: str) -> Trajectory:
        async with (
            OpenAIPolicy(f"{model}/v1", "tiny", stream=stream, token_ids=True) as policy,
            Rollouts(DialEnv, url, policy) as rollouts,
        ):
            return await rollouts.run(3)

    with dials() as server, streaming(vllm) as model:
        played = asyncio.run(run(server.url, model.url))
    assert played.ending is Ending.DONE
    tokens = played.tokens
    said = [place for place, mask in enumerate(tokens.mask) if mask]
    assert [tokens.logprobs[place] for place in said] == [-tokens.ids[place] / 128 for place in said]
    spoken = "".join(m["content"] for m in played.messages if m["role"] == "assistant")
    assert "".join(chr(tokens.ids[place]) for place in said) == spoken
    assert [turn.said_tokens for turn in played.turns] == [len('{"number": 0}')] * len(played.turns)
    assert played.turns[-1].prompt_tokens == len(tokens) - played.turns[-1].said_tokens


def test_an_endpoint_whose_template_rewrites_earlier_turns_is_refused_where_tokens_are_wanted() -> None:
    def forgetful(body: dict[str, Any]) -> dict[str, Any]:
        return vllm({**body, "messages": body["messages"][-1:]})

    async def run(url: str, model: str) -> None:
        async with (
            OpenAIPolicy(f"{model}/v1", "tiny", token_ids=True) as policy,
            Rollouts(DialEnv, url, policy) as rollouts,
        ):
            await rollouts.run(5)

    with (
        dials() as server,
        streaming(forgetful) as model,
        pytest.raises(ConfigurationError, match="changes earlier messages"),
    ):
        asyncio.run(run(server.url, model.url))


def test_streamed_tool_calls_are_put_together() -> None:
    app = create_app(Basket, CallToolAction, CallToolObservation, max_concurrent_envs=4)

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [shopping(body)]}

    async def run(url: str, model: str) -> Trajectory:
        async with (
            OpenAIPolicy(f"{model}/v1", "tiny", stream=True) as policy,
            Rollouts(MCPToolClient, url, policy) as rollouts,
        ):
            return await rollouts.run(Task(prompt="Buy fruit."))

    with running(app) as server, streaming(answer) as model:
        played = asyncio.run(run(server.url, model.url))
    assert (played.ending, played.reward) == (Ending.DONE, 1.0)


def one(model_url: str, **options: Any) -> str:
    async def run() -> str:
        async with OpenAIPolicy(f"{model_url}/v1", "tiny", **options) as policy:
            (said,) = await policy([Prompt([{"role": "user", "content": "hello"}])])
            return said.text

    return asyncio.run(run())


def test_a_stream_that_is_cut_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envtorch.rollout.endpoint_policy.FIRST_PAUSE_S", 0.01)
    with streaming(vllm, broken=2) as model:
        assert one(model.url, stream=True) == '{"number": 0}'
        assert len(model.app.state.asked) == 3
    with (
        streaming(vllm, broken=9) as model,
        pytest.raises(EndpointFailed, match="ended before its last event"),
    ):
        one(model.url, stream=True, attempts=2)


@given(st.text(max_size=20), st.lists(st.integers(0, 9), max_size=5), st.data())
def test_a_streamed_answer_is_the_whole_answer(text: str, ids: list[int], data: st.DataObject) -> None:
    logprobs = {"content": [{"token": str(id), "logprob": -float(id)} for id in ids]}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "' + "é" + '"}'}}
    message = {
        "role": "assistant",
        "content": text,
        "tool_calls": [call] if data.draw(st.booleans()) else None,
    }
    whole = {
        "choices": [{"message": message, "token_ids": ids, "logprobs": logprobs}],
        "prompt_token_ids": [7],
        "usage": {"prompt_tokens": 1, "completion_tokens": len(ids)},
    }
    streamed = StreamedAnswer()
    for event in [*events_of(whole), "[DONE]"]:
        streamed.take(f"data: {event}")
    assert read_chat(streamed.finish()) == read_chat(whole)


def test_requests_are_spread_over_time() -> None:
    async def run(url: str) -> float:
        async with OpenAIPolicy(f"{url}/v1", "tiny", requests_per_s=100) as policy:
            began = time.monotonic()
            await policy([Prompt([{"role": "user", "content": "hello"}])] * 20)
            return time.monotonic() - began

    with streaming(vllm) as model:
        assert asyncio.run(run(model.url)) >= 0.19


def test_tokens_are_spread_over_time_by_what_the_endpoint_counts() -> None:
    """A hundred requests' worth of tokens may be used at once; twenty more take a second to be there."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": "hello"}}

    async def run(url: str) -> float:
        asking = OpenAIPolicy(f"{url}/v1", "tiny", max_tokens=1, tokens_per_minute=120_000, stream=False)
        async with asking as policy:
            began = time.monotonic()
            for _ in range(12):
                await policy([Prompt([{"role": "user", "content": "hello"}])] * 10)
            return time.monotonic() - began

    with endpoint(answer, usage={"prompt_tokens": 150, "completion_tokens": 50}) as model:
        assert asyncio.run(run(model.url)) >= 1.8


@pytest.mark.parametrize("limit", ["requests_per_s", "tokens_per_minute"])
def test_a_limit_of_nothing_is_refused(limit: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{limit} is more than 0"):
        OpenAIPolicy("http://127.0.0.1:1/v1", "tiny", **{limit: 0})  # type: ignore[arg-type]


def test_an_endpoint_tells_its_models() -> None:
    async def run(url: str) -> list[str]:
        async with OpenAIPolicy(f"{url}/v1", "") as policy:
            return await policy.models()

    with streaming(vllm) as model:
        assert asyncio.run(run(model.url)) == ["tiny"]
        with pytest.raises(EndpointFailed, match="does not list its models"):
            asyncio.run(run(model.url + "/nothing"))


def test_an_answer_without_a_choice_is_shown() -> None:
    with (
        streaming(lambda body: {"detail": "what?"}) as model,
        pytest.raises(ConfigurationError, match=r"gave no choice: .*what"),
    ):
        one(model.url)


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": {"message": "hello"}},
        {"choices": [{"message": "hello"}]},
        {"choices": [{"message": {"content": 3}}]},
        {"choices": [{"message": {"tool_calls": [{}]}}]},
        {"choices": [{"message": {"content": "x"}, "token_ids": [1], "logprobs": {"content": [{}]}}]},
    ],
    ids=json.dumps,
)
def test_an_answer_of_another_form_is_shown_with_the_next_step(answer: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="the policy's endpoint gave") as refused:
        read_chat(answer)
    assert json.dumps(answer) in str(refused.value)
    assert "OpenAI-compatible" in refused.value.details["next_step"]


def test_answers_that_other_servers_write_a_little_differently_are_understood() -> None:
    parts = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "he"},
        {"type": "text", "text": "y"},
    ]
    call = {"function": {"name": "put", "arguments": {"thing": "apple"}}}
    message = {"content": parts, "tool_calls": [call, call]}
    said = read_chat({"choices": [{"message": message}], "usage": {"prompt_tokens": "many"}})
    assert said.text == "hey"
    assert [(one.id, one.args) for one in said.tool_calls] == [
        ("call-0", {"thing": "apple"}),
        ("call-1", {"thing": "apple"}),
    ]
    assert said.usage is None
