"""What an author's own page is given to play with: OpenEnv's `web_manager`, with a session per visitor."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from gradio.context import LocalContext
from pydantic import BaseModel
from starlette.websockets import WebSocket, WebSocketDisconnect

from envtorch.env import Environment
from envtorch.errors import EnvironmentFailed, Unsupported
from envtorch.protocol.calls import Call
from envtorch.types import EnvironmentMetadata
from envtorch.web.episodes import EpisodeEntry
from envtorch.web.played_environment import PlayedEnvironment
from envtorch.web.quick_start import quick_start
from envtorch.web.schema import MISSING, Field, Kind
from envtorch.web.visits import Branch, Visit, Visits

__all__ = ["ActionLog", "EpisodeState", "WebManager", "described_fields", "with_form_values"]

T = TypeVar("T")


class ActionLog(BaseModel):
    """One step, as OpenEnv's page keeps it."""

    timestamp: str = ""
    action: dict[str, Any]
    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    step_count: int = 0


class EpisodeState(BaseModel):
    """Where a visitor's episode stands, as OpenEnv's page tells it."""

    episode_id: str | None = None
    step_count: int = 0
    current_observation: dict[str, Any] | None = None
    action_logs: list[ActionLog] = []
    is_reset: bool = True


class WebManager:
    """Plays for whoever's event is being answered.

    An author's handler calls `reset_environment`, `step_environment` and `get_state` and names no visitor:
    Gradio knows whose event it is answering, and each visitor has a session. Calls from outside an event
    share one.
    """

    MAX_ACTION_LOGS = 1000

    def __init__(self, subject: PlayedEnvironment, visits: Visits) -> None:
        self.subject = subject
        self.visits = visits
        self._loop: asyncio.AbstractEventLoop | None = None
        self.connected_clients: list[WebSocket] = []

    # What is known before anybody comes.

    @property
    def metadata(self) -> EnvironmentMetadata:
        return self.subject.metadata

    @property
    def action_cls(self) -> type:
        return self.subject.codec.spec.action

    @property
    def observation_cls(self) -> type:
        return self.subject.codec.spec.observation

    @property
    def action_fields(self) -> list[dict[str, Any]]:
        """The action's fields, as OpenEnv describes them to a builder."""
        return described_fields(self.subject.action_fields)

    @property
    def is_chat_env(self) -> bool:
        """Whether an action is a tensor of tokens, so that a person would write a message instead."""
        tokens = getattr(self.action_cls, "model_fields", {}).get("tokens")
        return tokens is not None and "Tensor" in str(tokens.annotation)

    @property
    def quick_start_markdown(self) -> str:
        return quick_start(self.metadata, self.action_cls, self.observation_cls)

    # The visitor's episode.

    @property
    def _visit(self) -> Visit:
        request = LocalContext.request.get(None)
        return self.visits.of(getattr(request, "session_hash", None))

    async def reset_environment(self, reset_kwargs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Begin an episode; keywords that `reset` does not take are dropped."""
        entry = await self._visit.reset(reset_kwargs or {}, strict=False)
        await self._send_state_update()
        return _envelope(entry)

    async def step_environment(self, action_data: Mapping[str, Any]) -> dict[str, Any]:
        """Take one action, given as a form sends it."""
        visit = self._visit
        branch = await self._ready(visit)
        async with visit.turn:
            entry = await branch.step(with_form_values(action_data))
        await self._send_state_update()
        return _envelope(entry)

    async def step_message(self, message: Any) -> dict[str, Any]:
        """Take the action that a chat environment makes of a message."""
        make = getattr(await self.environment(), "message_to_action", None)
        if make is None:
            return await self.step_environment({"message": message})
        action = make(message)
        return await self.step_environment(action.model_dump(exclude={"metadata"}))

    async def state(self) -> dict[str, Any]:
        """Where the episode stands. Raises `RuntimeError` where the environment cannot tell."""
        branch = await self._ready(self._visit)
        try:
            told = await branch.session.call(Call("state"))
        except EnvironmentFailed as error:
            raise RuntimeError(error.message) from error
        branch.state = json.loads(told)
        return branch.state

    def get_state(self) -> dict[str, Any]:
        """`state`, for handlers that do not await: fresh on a thread of their own; on the event loop, as it
        was after the last call."""
        if _on_loop():
            branch = self._visit.branch
            if branch is None or not branch.state:
                raise RuntimeError("there is no episode yet. Call reset() first.")
            return branch.state
        return self._wait_for(self.state())

    @property
    def env(self) -> Environment[Any, Any, Any]:
        """The visitor's environment itself, where it lives in this process."""
        if _on_loop():
            branch = self._visit.branch
            if branch is None:
                raise Unsupported("this visitor has no environment yet: await reset_environment() first")
            return _environment(branch)
        return self._wait_for(self.environment())

    async def environment(self) -> Environment[Any, Any, Any]:
        """`env`, awaited: opened if need be."""
        return _environment(await self._ready(self._visit))

    @property
    def episode_state(self) -> EpisodeState:
        """The visitor's episode so far."""
        branch = self._visit.branch
        if branch is None or not branch.entries:
            return EpisodeState()
        steps = [entry for entry in branch.entries if entry.call == "step"]
        logs = [
            ActionLog(
                action=dict(entry.sent),
                observation=dict(entry.observation),
                reward=entry.reward,
                done=entry.done,
                step_count=number,
            )
            for number, entry in enumerate(steps, 1)
        ]
        return EpisodeState(
            episode_id=branch.state.get("episode_id"),
            step_count=branch.state.get("step_count", len(steps)),
            current_observation=dict(branch.entries[-1].observation),
            action_logs=logs[-self.MAX_ACTION_LOGS :],
            is_reset=not steps,
        )

    async def _ready(self, visit: Visit) -> Branch:
        visit.require_simulation()
        async with visit.turn:
            self._loop = asyncio.get_running_loop()
            return await visit.ready()

    def _wait_for(self, awaited: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            awaited.close()
            raise RuntimeError("nothing was reset yet. Call reset() first.")
        return asyncio.run_coroutine_threadsafe(awaited, self._loop).result()

    async def _run_sync_in_thread_pool(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """OpenEnv's builders call this to reach their environment without blocking the loop."""
        return await asyncio.to_thread(function, *args, **kwargs)

    # `/ws/ui`: whoever listens is told of each change.

    async def connect_websocket(self, websocket: WebSocket) -> None:
        await websocket.accept()
        self.connected_clients.append(websocket)
        await self._send_state_update()

    async def disconnect_websocket(self, websocket: WebSocket) -> None:
        if websocket in self.connected_clients:
            self.connected_clients.remove(websocket)

    async def _send_state_update(self) -> None:
        if not self.connected_clients:
            return
        update = {"type": "state_update", "episode_state": self.episode_state.model_dump()}
        for client in list(self.connected_clients):
            try:
                await client.send_text(json.dumps(update))
            except (RuntimeError, WebSocketDisconnect):  # it left without a word
                await self.disconnect_websocket(client)


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _environment(branch: Branch) -> Environment[Any, Any, Any]:
    host = branch.session.runner.host
    if host is None:
        raise Unsupported(
            "the environment lives in a process of its own; only its calls can be made from here"
        )
    return host.environment


def _envelope(entry: EpisodeEntry) -> dict[str, Any]:
    """The answer as OpenEnv's page has it."""
    metadata = entry.observation.get("metadata")
    return {**entry.payload, **({"metadata": metadata} if metadata else {})}


def with_form_values(action_data: Mapping[str, Any]) -> dict[str, Any]:
    """An action whose JSON texts are what they say: builders send `arguments` and `tokens` as text."""
    return {name: _from_form(name, value) for name, value in action_data.items()}


def _from_form(name: str, value: Any) -> Any:
    if name in ("arguments", "metadata", "tokens") and isinstance(value, str):
        try:
            return json.loads(value) if value.strip() else {}
        except ValueError:
            return value
    return value


_OLD_KINDS = {
    Kind.CHOICE: "select",
    Kind.BOOLEAN: "checkbox",
    Kind.INTEGER: "number",
    Kind.NUMBER: "number",
    Kind.LONG_TEXT: "textarea",
    Kind.CODE: "textarea",
}


def described_fields(fields: tuple[Field, ...]) -> list[dict[str, Any]]:
    """Fields in the words of OpenEnv's `action_fields`."""
    return [
        {
            "name": field.name,
            "type": "tensor" if "tokens" in field.name.lower() else _OLD_KINDS.get(field.kind, "text"),
            "required": field.required,
            "description": field.help,
            "default_value": None if field.default is MISSING else field.default,
            "choices": list(field.choices) or None,
            "min_value": field.minimum,
            "max_value": field.maximum,
            "min_length": None,
            "max_length": None,
            "pattern": None,
            "placeholder": f"Enter {field.label}...",
            "help_text": field.help,
        }
        for field in fields
    ]
