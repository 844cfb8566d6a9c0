"""Models behind a real HTTP server: retries, rate limits, streams, order, time, cancellation, budgets."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from envtorch.envs.repl_env import AsyncREPLEnv, Budget, OpenAICompatible, REPLEnv, REPLEnvironment
from envtorch.envs.repl_env.budgets import BudgetSpent, Spending
from envtorch.envs.repl_env.language_models import FunctionModel, LanguageModel, ModelFailed, Request
from envtorch.envs.repl_env.model_calls import ModelCalls, Retries
from envtorch.errors import ConfigurationError
from envtorch.sandbox import report
from envtorch.settings import REPLSettings
from tests.support import eventually

from .places import SMALL
from .stub_server import Behaviour, Heard, StubServer, stub_server


class Pauses:
    """Retries that do not wait, and remember how long they would have."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        await asyncio.sleep(0)

    @property
    def retries(self) -> Retries:
        return Retries(sleep=self)


def echo(heard: Heard) -> Behaviour:
    return Behaviour(f"<{heard.prompt}>")


def in_turn(*behaviours: Behaviour) -> Callable[[Heard], Behaviour]:
    left = list(behaviours)
    return lambda _: left.pop(0)


def asked(
    stub: StubServer,
    prompts: list[str],
    *,
    budget: Budget | None = None,
    pauses: Pauses | None = None,
    **options: Any,
) -> tuple[list[str], Spending]:
    """The answers to a batch, and what it cost."""

    async def main() -> tuple[list[str], Spending]:
        model = OpenAICompatible(stub.url, "m", api_key="key", **options)
        spending = Spending(budget or Budget())
        try:
            model_calls = ModelCalls(model, spending, (pauses or Pauses()).retries)
            return await model_calls.query_all("0", prompts), spending
        finally:
            await model.close()

    return asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_question_and_what_it_costs(stream: bool) -> None:
    with stub_server(echo) as stub:
        answers, spending = asked(stub, ["what é"], stream=stream)
    assert answers == ["<what é>"]
    assert (spending.calls, spending.prompt_tokens, spending.completion_tokens) == (1, 11, 7)
    (heard,) = stub.heard
    assert heard.headers["authorization"] == "Bearer key"
    assert (heard.body["model"], heard.body["max_tokens"], heard.body["temperature"]) == ("m", 2048, 0.7)
    assert heard.body.get("stream", False) is stream


def test_a_server_that_streams_unasked_is_understood() -> None:
    with stub_server(lambda heard: Behaviour("streamed", stream=True)) as stub:
        assert asked(stub, ["q"])[0] == ["streamed"]


def test_what_a_model_does_not_count_is_estimated() -> None:
    with stub_server(lambda heard: Behaviour("a" * 40, usage=False)) as stub:
        _, spending = asked(stub, ["p" * 80])
    assert (spending.prompt_tokens, spending.completion_tokens) == (20, 10)


@pytest.mark.parametrize(
    "first",
    [
        Behaviour("busy", status=503),
        Behaviour("slow down", status=429),
        Behaviour("oops", status=500),
        Behaviour("half", break_off=True),
        Behaviour("half a stream", break_off=True, stream=True),
        Behaviour(body=b'data: {"choices": [{"delta": {"content": "cut"}}]}\n\n', stream=True),
    ],
    ids=["503", "429", "500", "broken", "broken stream", "unfinished stream"],
)
def test_what_may_yet_succeed_is_tried_again(first: Behaviour) -> None:
    pauses = Pauses()
    with stub_server(in_turn(first, first, Behaviour("at last"))) as stub:
        answers, spending = asked(stub, ["q"], pauses=pauses)
    assert answers == ["at last"]
    assert (spending.calls, spending.retries, spending.failures) == (1, 2, 0)
    assert 0.25 <= pauses.taken[0] <= 0.5 <= pauses.taken[1] <= 1.0


def test_a_server_says_itself_when_to_come_back() -> None:
    pauses = Pauses()
    limited = Behaviour("slow down", status=429, headers=(("Retry-After", "3.5"),))
    dated = Behaviour("slow", status=429, headers=(("Retry-After", "Wed, 21 Oct 2026 07:28:00 GMT"),))
    with stub_server(in_turn(limited, dated, Behaviour("yes"))) as stub:
        assert asked(stub, ["q"], pauses=pauses)[0] == ["yes"]
    assert pauses.taken[0] == 3.5
    assert 0.5 <= pauses.taken[1] <= 1.0


def test_a_pause_that_would_outlast_the_budget_is_not_taken() -> None:
    limited = Behaviour("slow down", status=429, headers=(("Retry-After", "3600"),))
    with stub_server(lambda _: limited) as stub:
        answers, spending = asked(stub, ["q"], budget=Budget(time_s=600))
    assert answers == ['Error: HTTP 429: {"error": {"message": "slow down"}}']
    assert (len(stub.heard), spending.retries) == (1, 0)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (Behaviour("who are you", status=401), "HTTP 401"),
        (Behaviour("no such model", status=404), "HTTP 404"),
        (Behaviour(body=b"<html>"), "could not be understood"),
        (Behaviour(body=b"[]"), "could not be understood"),
        (Behaviour(body=b'{"choices": []}'), "could not be understood"),
        (Behaviour(body=b'{"error": "bad prompt"}'), "bad prompt"),
    ],
)
def test_what_cannot_succeed_is_not_tried_again(how: Behaviour, why: str) -> None:
    with stub_server(lambda _: how) as stub:
        answers, spending = asked(stub, ["q"])
    assert answers[0].startswith("Error: ")
    assert why in answers[0]
    assert (len(stub.heard), spending.failures) == (1, 1)


def test_it_gives_up_after_four_attempts() -> None:
    with stub_server(lambda _: Behaviour("busy", status=503)) as stub:
        answers, spending = asked(stub, ["q"])
    assert "HTTP 503" in answers[0]
    assert (len(stub.heard), spending.calls, spending.retries, spending.failures) == (4, 1, 3, 1)


def test_nobody_there_is_an_answer_too() -> None:
    with stub_server(echo) as stub:
        pass
    answers, spending = asked(stub, ["q"])
    assert answers[0].startswith("Error: ConnectError")
    assert spending.retries == 3


def test_a_batch_keeps_its_order_and_its_limit_and_survives_a_failure() -> None:
    gate = asyncio.Event()

    def behave(heard: Heard) -> Behaviour:
        if stub.running == 3:  # as many as are allowed: nobody is answered before that
            gate.set()
        if heard.prompt == "4":
            return Behaviour("not this one", status=400)
        return Behaviour(f"<{heard.prompt}>", wait_for=gate)

    prompts = [str(number) for number in range(12)]
    with stub_server(behave) as stub:
        answers, spending = asked(stub, prompts, budget=Budget(concurrency=3))
    assert [a for a in answers if not a.startswith("Error")] == [f"<{p}>" for p in prompts if p != "4"]
    assert answers[4].startswith("Error: HTTP 400")
    assert stub.most_at_once == 3
    assert (spending.calls, spending.failures) == (12, 1)


def test_no_answer_in_time_is_a_failure() -> None:
    with stub_server(lambda _: Behaviour("late", wait_for=asyncio.Event())) as stub:
        answers, spending = asked(stub, ["q"], timeout_s=0.1)
        assert answers == ["Error: no answer within 0.1 s"]
        assert spending.retries == 3
        eventually(lambda: stub.hung_up == len(stub.heard), "every request is taken back")


def test_calls_are_limited_over_the_whole_episode() -> None:
    with stub_server(echo) as stub:
        answers, _ = asked(stub, ["a", "b", "c"], budget=Budget(calls=2))
    assert answers == ["<a>", "<b>", "Error: the episode's 2 calls of language models are spent"]


def test_tokens_are_limited_over_the_whole_episode() -> None:
    async def main() -> list[str]:
        model = OpenAICompatible(stub.url, "m")
        model_calls = ModelCalls(model, Spending(Budget(tokens=30)))
        try:
            return [await model_calls.query("0", prompt) for prompt in "abc"]
        finally:
            await model.close()

    with stub_server(echo) as stub:
        answers = asyncio.run(main())
    assert answers == ["<a>", "<b>", "Error calling LLM: the episode's 30 tokens are spent"]


def test_time_is_limited_over_the_whole_episode() -> None:
    now = [100.0]
    spending = Spending(Budget(time_s=10), clock=lambda: now[0])
    spending.take_call()
    now[0] = 110.0
    with pytest.raises(BudgetSpent, match="time"):
        spending.take_call()


def test_a_budget_that_allows_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Budget(concurrency=0)


def test_without_a_model_the_answer_says_what_to_do(sandboxes: None) -> None:
    with REPLEnv.local(lambda: REPLEnvironment(policy=SMALL, settings=REPLSettings())) as env:
        env.reset()
        said = env.execute("print(llm_query('q'))").observation.result.stdout
    assert said.startswith("Error calling LLM: no language model is set up: pass llm_query_fn")


def served(stub: StubServer, **options: Any) -> Callable[[], REPLEnvironment]:
    settings = REPLSettings(llm_base_url=stub.url, llm_model="served")
    return lambda: REPLEnvironment(policy=SMALL, settings=settings, retries=Pauses().retries, **options)


def test_a_token_and_a_model_hold_for_one_episode(sandboxes: None) -> None:
    with stub_server(echo) as stub, REPLEnv.local(served(stub)) as env:
        env.reset(hf_token="first", llm_model="mine")
        env.execute("llm_query('1'); llm_query('2', model='theirs')")
        env.reset()
        env.execute("llm_query('3')")
        env.reset(hf_token="second")
        env.execute("llm_query('4')")
    heard = [(h.prompt, h.headers.get("authorization"), h.body["model"]) for h in stub.heard]
    assert heard == [
        ("1", "Bearer first", "mine"),
        ("2", "Bearer first", "theirs"),
        ("3", None, "served"),
        ("4", "Bearer second", "served"),
    ]


def test_a_forked_session_asks_over_connections_of_its_own(sandboxes: None) -> None:
    if report().grade != "host":
        pytest.skip("a sandbox at container grade cannot be forked")
    with stub_server(echo) as stub, REPLEnv.local(served(stub)) as env:
        env.reset(hf_token="t")
        env.execute("llm_query('1')")
        (copy,) = env.fork()
        assert copy.execute("llm_query('2')").observation.result.stdout == '"<2>"'
        copy.close()
        assert env.execute("llm_query('3')").observation.result.stdout == '"<3>"'
    assert {heard.headers["authorization"] for heard in stub.heard} == {"Bearer t"}


def test_a_token_alone_leads_to_hugging_face_and_a_key_goes_nowhere_else(sandboxes: None) -> None:
    """No request is made: what is looked at is where one would go, and with which key."""

    def model_of(settings: REPLSettings, **options: Any) -> str:
        async def main() -> str:
            environment = REPLEnvironment(policy=SMALL, settings=settings)
            await environment.reset(**options)
            try:
                assert environment._node is not None
                model = environment._node.model_calls.model
                key = model._headers.get("Authorization") if isinstance(model, OpenAICompatible) else None
                return f"{model!r} {key}"
            finally:
                await environment.close()

        return asyncio.run(main())

    hugging_face = "https://router.huggingface.co/v1/chat/completions"
    usual = "Qwen/Qwen3-Coder-480B-A35B-Instruct"
    mine = REPLSettings(llm_base_url="http://127.0.0.1:1/v1", llm_api_key="key", hf_token="hf")
    assert model_of(REPLSettings(), hf_token="t") == f"<OpenAICompatible {usual} at {hugging_face}> Bearer t"
    assert model_of(REPLSettings(hf_token="hf")).endswith(f"{hugging_face}> Bearer hf")
    assert model_of(mine).endswith("http://127.0.0.1:1/v1/chat/completions> Bearer key")
    assert model_of(mine, hf_token="t", llm_model="m").startswith("<OpenAICompatible m at http://127.0.0.1:1")
    assert model_of(REPLSettings(llm_api_key="key")) == "None None"


def test_settings_are_read_from_the_environment_and_functions_come_first() -> None:
    names = {
        "REPL_CONTEXT": "c",
        "REPL_TASK_PROMPT": "t",
        "REPL_MAX_ITERATIONS": "4",
        "LLM_MODEL": "m",
        "HF_TOKEN": "hf_hidden",
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
        "OPENAI_API_KEY": "key_hidden",
    }
    settings = REPLSettings.from_environ(names)
    assert (settings.context, settings.task_prompt, settings.max_iterations) == ("c", "t", 4)
    assert "hidden" not in repr(settings)
    assert (settings.hf_token, settings.llm_api_key) == ("hf_hidden", "key_hidden")
    with REPLEnv.local(lambda: REPLEnvironment(settings=settings, max_iterations=9)) as env:
        seen = env.reset().observation
        assert (seen.context_preview, seen.max_iterations, seen.metadata["task_prompt"]) == ("c", 4, "t")
        assert env.reset(context="mine", max_iterations=2).observation.context_preview == "mine"
        assert env.state().max_iterations == 2
    with pytest.raises(ConfigurationError, match="REPL_MAX_ITERATIONS"):
        REPLSettings.from_environ({"REPL_MAX_ITERATIONS": "many"})


def test_a_step_ends_in_time_whatever_the_model_does(sandboxes: None) -> None:
    with stub_server(lambda _: Behaviour("never", wait_for=asyncio.Event())) as stub:
        with REPLEnv.local(served(stub)) as env:
            env.reset()
            seen = env.execute("x = llm_query_batched(['a', 'b'])\nprint(x)", timeout_s=2.0).observation
            assert (
                seen.result.stdout == "['Error: the time for it is over', 'Error: the time for it is over']\n"
            )
            assert env.execute("len(x)").observation.result.stdout == "2"
        eventually(lambda: stub.hung_up == 2, "both requests are taken back")


def test_a_step_that_is_cancelled_takes_its_requests_back(sandboxes: None) -> None:
    async def main() -> None:
        async with AsyncREPLEnv.local(served(stub)) as env:
            await env.reset()
            await env.execute("kept = 1")
            step = asyncio.ensure_future(env.execute("llm_query_batched(['a', 'b', 'c'])"))
            await asyncio.to_thread(eventually, lambda: stub.running == 3, "three requests are made", 50)
            step.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await step
            await asyncio.to_thread(eventually, lambda: stub.hung_up == 3, "all are taken back", 50)
            assert (await env.execute("kept")).observation.result.stdout == "1"

    with stub_server(lambda _: Behaviour("never", wait_for=asyncio.Event())) as stub:
        asyncio.run(main())


def test_functions_may_be_async_and_a_batch_function_gets_the_whole_batch(sandboxes: None) -> None:
    batches: list[list[str]] = []

    async def query(prompt: str) -> str:
        await asyncio.sleep(0)
        return f"one {prompt}"

    def batch(prompts: list[str]) -> list[str]:
        batches.append(prompts)
        return [f"many {prompt}" for prompt in prompts]

    with REPLEnv(llm_query_fn=query, llm_batch_fn=batch) as env:
        env.reset()
        assert env.execute("llm_query('a')").observation.result.stdout == '"one a"'
        assert env.execute("llm_batch(['b', 'c'])").observation.result.stdout == '["many b", "many c"]'
    assert batches == [["b", "c"]]


@pytest.mark.parametrize("batch", [lambda prompts: ["only one"], lambda prompts: 1 / 0])
def test_a_batch_function_that_fails_is_told_in_every_place(batch: Callable[..., Any]) -> None:
    async def main() -> list[str]:
        model_calls = ModelCalls(FunctionModel(None, batch), Spending(Budget(calls=3)))
        return await model_calls.query_all("0", ["a", "b"])

    answers = asyncio.run(main())
    assert len(answers) == 2
    assert all(answer.startswith("Error: ") for answer in answers)


def test_functions_cannot_travel() -> None:
    with pytest.raises(ConfigurationError, match="a server asks its own"):
        REPLEnv("http://127.0.0.1:1", llm_query_fn=str)
    with pytest.raises(ConfigurationError, match="not both"):
        REPLEnvironment(model=FunctionModel(str), llm_query_fn=str)


def test_a_conversation_is_one_text_for_a_function() -> None:
    request = Request([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    assert request.prompt == "[system]\ns\n\n[user]\nu"
    model: LanguageModel = FunctionModel(lambda prompt: prompt)
    assert asyncio.run(model.complete(request)).text == request.prompt
    failing = FunctionModel(lambda prompt: prompt.nonsense)  # type: ignore[attr-defined]
    with pytest.raises(ModelFailed, match="AttributeError"):
        asyncio.run(failing.complete(request))
