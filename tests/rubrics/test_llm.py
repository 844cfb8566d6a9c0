"""Language model clients and the judge, against models that are not there."""

import asyncio
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from envtorch.errors import MissingExtra
from envtorch.extras import install_command
from envtorch.llm import AnthropicClient, LLMClient, LLMResponse, OpenAIClient, ToolCall, create_llm_client
from envtorch.llm.schemas import anthropic_messages, clean_schema
from envtorch.rubrics import LLMJudge

TOOL = {"name": "look", "inputSchema": {"type": "object", "properties": {"at": {"type": "string"}}}}


class Parrot(LLMClient):
    """Always says the same, and remembers what it was asked."""

    def __init__(self, says: str) -> None:
        super().__init__("http://127.0.0.1", 1)
        self.says = says
        self.asked: list[str] = []

    async def complete(self, prompt: str, **options: Any) -> str:
        self.asked.append(prompt)
        return self.says


@pytest.mark.parametrize(("reply", "score"), [("I give 0.75 of 1", 0.75), ("8", 1.0), ("nothing", 0.0)])
def test_the_judge_reads_a_score(reply: str, score: float) -> None:
    model = Parrot(reply)
    judge = LLMJudge("{action} -> {observation}?", model)
    assert asyncio.run(judge("a", "o")) == score
    assert model.asked == ["a -> o?"]
    assert judge.last_score == score


def test_the_judge_as_told() -> None:
    judge = LLMJudge("{action}", Parrot("[7/10]"), score_pattern=r"\[(\d+)/10\]", normalize=False)
    assert asyncio.run(judge("a", "o")) == 7.0
    other = LLMJudge("?", Parrot("[7/10]"))
    other.load_state_dict(judge.state_dict())
    assert asyncio.run(other("a", "o")) == 7.0


class FakeOpenAI:
    """Stands where `openai.AsyncOpenAI` would, and keeps what it is given."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.requests: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, **request: Any) -> Any:
        self.requests.append(request)
        call = SimpleNamespace(id="c1", function=SimpleNamespace(name="look", arguments='{"at": "it"}'))
        message = SimpleNamespace(content="hm", tool_calls=[call] if "tools" in request else None)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def test_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(AsyncOpenAI=FakeOpenAI))
    client = OpenAIClient("http://127.0.0.1", 8000, model="m", system_prompt="be brief")
    fake: FakeOpenAI = client._client

    assert fake.options == {"base_url": "http://127.0.0.1:8000/v1", "api_key": "not-needed"}
    assert asyncio.run(client.complete("hi", temperature=1.0)) == "hm"
    assert fake.requests[0]["messages"][0] == {"role": "system", "content": "be brief"}
    assert fake.requests[0]["temperature"] == 1.0
    answer = asyncio.run(client.complete_with_tools([{"role": "user", "content": "?"}], [TOOL]))
    assert answer == LLMResponse("hm", [ToolCall("c1", "look", {"at": "it"})])


class FakeAnthropic:
    def __init__(self, **options: Any) -> None:
        self.requests: list[dict[str, Any]] = []
        self.messages = self

    async def create(self, **request: Any) -> Any:
        self.requests.append(request)
        text = SimpleNamespace(type="text", text="hm")
        use = SimpleNamespace(type="tool_use", id="c1", name="look", input={"at": "it"})
        return SimpleNamespace(content=[text, use])


def test_anthropic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", SimpleNamespace(AsyncAnthropic=FakeAnthropic))
    client = create_llm_client("Anthropic", "m", "key")
    assert isinstance(client, AnthropicClient)
    answer = asyncio.run(client.complete_with_tools([{"role": "user", "content": "?"}], [TOOL]))
    assert answer.tool_calls == [ToolCall("c1", "look", {"at": "it"})]
    assert client._client.requests[0]["tools"][0]["input_schema"]["properties"] == {"at": {"type": "string"}}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("anthropic"))):
        AnthropicClient(model="m")
    with pytest.raises(ValueError, match="unknown provider 'google'"):
        create_llm_client("google", "m")


def test_a_conversation_translated_for_anthropic() -> None:
    asked = LLMResponse("", [ToolCall("c1", "look", {"at": "it"})]).to_message_dict()
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "seen"} for n in (1, 2)]
    system, turns = anthropic_messages([{"role": "system", "content": "S"}, asked, *results])
    assert system == "S"
    assert turns[0]["content"] == [{"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "it"}}]
    assert [part["tool_use_id"] for part in turns[1]["content"]] == ["c1", "c2"], "one turn for one round"


def test_schemas_become_one_object() -> None:
    assert clean_schema(None) == {"type": "object", "properties": {}, "required": []}
    parts = [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]
    assert clean_schema({"allOf": parts})["required"] == ["a", "b"]
    object_like = {"type": "object", "properties": {"x": {}}}
    assert clean_schema({"anyOf": [{"type": "null"}, object_like]})["properties"] == {"x": {}}


def test_an_endpoint_is_a_plain_address() -> None:
    with pytest.raises(ValueError, match="no credentials"):
        Parrot.__mro__[1].__init__(Parrot("x"), "http://user:word@127.0.0.1", 1)  # type: ignore[misc]
