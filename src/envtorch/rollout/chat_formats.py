"""Between an environment and a conversation: observations become messages, completions become actions."""

import copy
import dataclasses
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from envtorch.client import EnvClient, MCPToolClient
from envtorch.env import type_arguments
from envtorch.llm import ToolCall
from envtorch.protocol.arguments import shown
from envtorch.protocol.observation_text import observation_text
from envtorch.rollout.blame import NotAnAction
from envtorch.rollout.completions import Completion
from envtorch.rollout.trajectories import ChatMessage, Task
from envtorch.tools import CallToolAction, CallToolObservation, ToolError, ToolErrorType
from envtorch.types import StepResult, Tool

__all__ = [
    "ChatFormat",
    "CodeFormat",
    "CutCompletion",
    "JSONFormat",
    "RefusedCall",
    "ToolFormat",
    "default_format",
    "format_of_schema",
    "observation_text",
    "takes_tool_calls",
]

Result = StepResult[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that cannot be made. It is answered with `result`, and the environment is not asked."""

    result: Result


class CutCompletion(NotAnAction):
    """A completion that ended before what it was to say: within a call or a block, or at `max_tokens`."""


class ChatFormat(ABC):
    """How one kind of environment is played in a conversation. Subclass it for a format of your own."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        """The first message of every conversation, if it is not empty."""
        self.tools: Sequence[Tool] = ()
        """The tools a policy may call."""

    async def prepare(self, env: Any) -> None:  # noqa: B027, most formats have nothing to ask
        """Ask the environment what the format needs to know. Called once, on the first session."""

    def begin(self, task: Task, result: Result) -> list[ChatMessage]:
        """The conversation up to the policy's first turn."""
        seen = observation_text(result.observation)
        told = "\n\n".join(text for text in (task.prompt, seen) if text)
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": told}]

    def said(self, completion: Completion) -> ChatMessage:
        """The policy's turn, as a message."""
        return {"role": "assistant", "content": completion.text}

    @abstractmethod
    def actions(self, completion: Completion) -> Sequence[Any]:
        """The actions to take, in order; none at all ends the episode. Raises `NotAnAction`.

        A `RefusedCall` among them is answered without a step.
        """

    def answers(self, completion: Completion, results: Sequence[Result]) -> list[ChatMessage]:
        """What the policy sees of the steps: messages up to its next turn."""
        seen = [observation_text(result.observation) for result in results]
        return [{"role": "user", "content": "\n\n".join(text for text in seen if text)}]


class JSONFormat(ChatFormat):
    """Actions as JSON objects, by the schema of the environment's action class."""

    def __init__(
        self, action: Any = Any, system: str | None = None, *, schema: Mapping[str, Any] | None = None
    ) -> None:
        """`schema` is the action's, where its class is not here: then the server is who validates."""
        self._adapter: TypeAdapter[Any] = TypeAdapter(action if action is not Any else dict[str, Any])
        schema = copy.deepcopy(dict(schema or self._adapter.json_schema()))
        schema.get("properties", {}).pop("metadata", None)
        told = f"Answer with one JSON object, the action to take, by this schema:\n{json.dumps(schema)}"
        super().__init__(told if system is None else system)

    def actions(self, completion: Completion) -> Sequence[Any]:
        text = completion.text
        found = text[text.find("{") : text.rfind("}") + 1]
        if not found:
            raise NotAnAction("the completion has no JSON object in it")
        try:
            return [self._adapter.validate_json(found)]
        except ValidationError as error:
            raise NotAnAction(f"the JSON object is not an action: {_first_problem(error)}") from None


class CodeFormat(ChatFormat):
    """Actions as blocks of Python code; the last block of a completion is run.

    Blocks of other languages are text, and a block without a language is taken for Python. A last block that
    is not closed is no action, and neither is a text without a block that was cut at `max_tokens`: it is not
    the whole answer.
    """

    SYSTEM = (
        "Solve the task by writing Python code in a block fenced by ```python and ```. The code runs in a "
        "live interpreter, and you are shown what it prints. Names it defines are there in your next turn."
    )
    FINISH = " When you are done, give the answer itself, without a block of code."
    _FENCED = re.compile(r"```[^\n`]+```|```(?P<language>[^\n`]*)\n(?P<code>.*?)```", re.DOTALL)
    """Code within a line, or a block."""
    _LANGUAGES = frozenset({"python", "python3", "py", "repl"})

    def __init__(
        self, action: Any, system: str | None = None, *, fields: Sequence[str] | None = None
    ) -> None:
        """`action` is called with `code`; `fields` are the action's, where that is not its class."""
        self._action = action
        self._can_answer = {"is_final", "final_answer"} <= set(
            _fields_of(action) if fields is None else fields
        )
        usual = self.SYSTEM + (self.FINISH if self._can_answer else "")
        super().__init__(usual if system is None else system)

    def actions(self, completion: Completion) -> Sequence[Any]:
        fenced = list(self._FENCED.finditer(completion.text))
        _, fence, after = completion.text[fenced[-1].end() if fenced else 0 :].rpartition("```")
        if fence and self._language(after.partition("\n")[0]) in self._LANGUAGES:
            raise CutCompletion("the last block of Python code is not closed")
        blocks = [
            found["code"]
            for found in fenced
            if found["code"] is not None and self._language(found["language"]) in {"", *self._LANGUAGES}
        ]
        if blocks:
            return [self._made(code=blocks[-1])]
        if completion.is_cut:
            raise CutCompletion("the completion was cut at max_tokens before a block of Python code")
        if self._can_answer and completion.text.strip():
            return [self._made(is_final=True, final_answer=completion.text.strip())]
        raise NotAnAction("the completion has no block of Python code in it")

    def _language(self, told: str) -> str:
        """The language of a block, from what stands behind its fence."""
        return next(iter(told.lower().split()), "")

    def _made(self, **fields: Any) -> Any:
        try:
            return self._action(**fields)
        except ValidationError as error:
            raise NotAnAction(f"the completion is not an action: {_first_problem(error)}") from None


class ToolFormat(ChatFormat):
    """Actions as tool calls.

    The calls are those of `Completion.tool_calls`, else the `<tool_call>` elements in its text. A completion
    without a call ends the episode. A call that is not closed is no action, and neither is a text without a
    call that was cut at `max_tokens`.
    """

    _BEGIN, _END = "<tool_call>", "</tool_call>"

    async def prepare(self, env: Any) -> None:
        self.tools = await env.list_tools()

    def said(self, completion: Completion) -> ChatMessage:
        message = super().said(completion)
        if completion.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.args)},
                }
                for call in completion.tool_calls
            ]
        return message

    def actions(self, completion: Completion) -> Sequence[Any]:
        calls = completion.tool_calls or self._calls_in(completion.text)
        if completion.is_cut and not calls:
            raise CutCompletion("the completion was cut at max_tokens before a tool call")
        return [_call_of(call) for call in calls]

    def answers(self, completion: Completion, results: Sequence[Result]) -> list[ChatMessage]:
        messages: list[ChatMessage] = []
        for place, result in enumerate(results):
            message = {"role": "tool", "content": observation_text(result.observation)}
            if completion.tool_calls:
                message["tool_call_id"] = completion.tool_calls[place].id
            messages.append(message)
        return messages

    def _calls_in(self, text: str) -> list[ToolCall]:
        calls: list[ToolCall] = []
        start = text.find(self._BEGIN)
        while start >= 0:
            end = text.find(self._END, start)
            if end < 0:
                raise CutCompletion("the last tool call is not closed")
            try:
                told = json.loads(text[start + len(self._BEGIN) : end].strip())
                calls.append(ToolCall(f"call-{len(calls)}", str(told["name"]), told.get("arguments", {})))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise NotAnAction(f"a tool call cannot be read: {error}") from None
            start = text.find(self._BEGIN, end)
        return calls


def _call_of(call: ToolCall) -> CallToolAction | RefusedCall:
    arguments: Any = call.args  # a model may have said anything
    if isinstance(arguments, dict):
        return CallToolAction(tool_name=call.name, arguments=arguments)
    told = f"the arguments of {call.name} are a JSON object, not {shown(arguments)}"
    error = ToolError(error_type=ToolErrorType.INVALID_ARGS, message=told)
    return RefusedCall(StepResult(CallToolObservation(tool_name=call.name, error=error)))


def default_format(client: type[EnvClient[Any, Any, Any]]) -> ChatFormat:
    """The format for environments of this client: tools, a block of code, or JSON by the action's schema."""
    if takes_tool_calls(client):
        return ToolFormat()
    action = _action_of(client)
    return CodeFormat(action) if "code" in _fields_of(action) else JSONFormat(action)


def takes_tool_calls(client: type[EnvClient[Any, Any, Any]]) -> bool:
    """Whether actions are tool calls: those of an `MCPToolClient`, or of a client of `CallToolAction`."""
    action = _action_of(client)
    return issubclass(client, MCPToolClient) or (
        isinstance(action, type) and issubclass(action, CallToolAction)
    )


def _action_of(client: type[EnvClient[Any, Any, Any]]) -> Any:
    arguments = type_arguments(client, EnvClient)
    return arguments[0] if arguments else Any


def format_of_schema(schema: Mapping[str, Any]) -> ChatFormat:
    """The format for environments whose actions have this JSON schema, as dictionaries; see `/schema`."""
    fields = list(schema.get("properties", {}))
    if "tool_name" in fields:
        return ToolFormat()
    return CodeFormat(dict, fields=fields) if "code" in fields else JSONFormat(schema=schema)


def _fields_of(action: Any) -> Sequence[str]:
    if isinstance(action, type) and issubclass(action, BaseModel):
        return list(action.model_fields)
    return [field.name for field in dataclasses.fields(action)] if dataclasses.is_dataclass(action) else []


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    place = ".".join(map(str, problem["loc"]))
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])
