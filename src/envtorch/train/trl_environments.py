"""TRL's `environment_factory` on sessions: the environment's tools are the methods of a class."""

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter

from envtorch.client import EnvClient
from envtorch.env import type_arguments
from envtorch.errors import CapacityReached, ConfigurationError, EnvTorchError, Unsupported
from envtorch.rollout import Ending
from envtorch.rollout.blame import ending_of
from envtorch.rollout.chat_formats import observation_text, takes_tool_calls
from envtorch.rollout.finite_rewards import finite_total, reward_in
from envtorch.tools import CallToolAction
from envtorch.train.tool_methods import method_of
from envtorch.types import StepResult, Tool

__all__ = ["TRLEnvironments"]

logger = logging.getLogger(__name__)
NOT_FOR_RESET = {"prompt", "environment", "image", "images"}
"""Columns of a dataset that are TRL's own."""


class TRLEnvironments:
    """Environments for a trainer that calls their tools itself.

        with TRLEnvironments(MCPToolClient, "http://127.0.0.1:8000", group_size=8) as environments:
            trainer = GRPOTrainer(model, args=args, train_dataset=data, environment_factory=environments)
            trainer.train()

    An environment made of tools offers them; any other has one tool, named after its action class, whose
    arguments are the action's fields. The columns of the dataset beside `prompt` are options of `reset`.

    TRL plays one rollout after another and ends an episode only when the model stops calling tools;
    `TRLRollouts` plays them all at once.
    """

    def __init__(
        self,
        client: type[EnvClient[Any, Any, Any]],
        where: str,
        *,
        group_size: int = 1,
        attempts: int = 3,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`group_size` is the trainer's `num_generations`: the first reset of a group forks for the others.

        attempts: how often a reset is tried before its rollout is lost.
        """
        if min(group_size, attempts) < 1:
            raise ConfigurationError("group_size and attempts are at least 1")
        self._client = client
        self._where = where
        self._client_options = {"wait_s": 60.0, **(client_options or {})}
        self._group_size = group_size
        self._attempts = attempts
        self._can_fork = True
        self._lock = threading.Lock()
        self._ahead: list[_Start] = []
        """Copies of the last beginning, for the rest of its group."""
        self._begun: set[_Played] = set()
        """The environments that were reset for this batch."""
        self._made: list[_Played] = []
        self._class = self._make_class()

    def __call__(self) -> Any:
        """An environment. TRL makes one for each rollout of a batch, and resets it for each batch."""
        made = self._class(self)
        self._made.append(made)
        return made

    def close(self) -> None:
        """End all sessions."""
        for environment in self._made:
            environment._close()
        self._drop_ahead()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _make_class(self) -> "type[_Played]":
        tools = self._tools()
        if taken := {"reset", "get_reward"}.intersection(tool.name for tool in tools):
            raise ConfigurationError(f"{', '.join(taken)}: TRL uses this name; give the tool another one")
        methods = {tool.name: method_of(tool, _Played._call) for tool in tools}
        return type(self._client.__name__, (_Played,), methods)

    def _tools(self) -> list[Tool]:
        if takes_tool_calls(self._client):
            with self._client(self._where, **self._client_options) as session:
                return session.list_tools()
        return [_tool_of(_action_class(self._client))]

    def _start(self, by: "_Played", row: dict[str, Any]) -> "_Start":
        """A session after its reset: a copy that was made for this group, or a new one.

        A group is over when the row differs, and when `by` is reset again: that is another batch. One of an
        evaluation may be smaller than `group_size`.
        """
        options = {name: value for name, value in row.items() if name not in NOT_FOR_RESET}
        group = {**options, "prompt": row.get("prompt")}
        with self._lock:
            if by in self._begun:
                self._begun.clear()
                self._drop_ahead()
            self._begun.add(by)
            if self._ahead and self._ahead[-1].group == group:
                return self._ahead.pop()
            self._drop_ahead()
            for attempt in range(self._attempts):
                try:
                    return self._reset(options, group)
                except EnvTorchError as error:
                    ending = ending_of(error, {}, has_acted=False)
                    if ending is not Ending.LOST:
                        raise
                    logger.warning("reset failed, attempt %d of %d: %s", attempt + 1, self._attempts, error)
                    lost = error
        raise lost

    def _drop_ahead(self) -> None:
        for start in self._ahead:
            _close_quietly(start.session)
        self._ahead.clear()

    def _reset(self, options: dict[str, Any], group: dict[str, Any]) -> "_Start":
        session = self._client(self._where, **self._client_options)
        try:
            result = session.reset(**options)
            copies = self._fork(session)
        except BaseException:
            _close_quietly(session)
            raise
        self._ahead = [_Start(copy, result, group) for copy in copies]
        return _Start(session, result, group)

    def _fork(self, session: Any) -> Sequence[Any]:
        if self._group_size == 1 or not self._can_fork:
            return ()
        try:
            copies: Sequence[Any] = session.fork(self._group_size - 1)
        except Unsupported:
            self._can_fork = False
            return ()
        except CapacityReached:
            return ()
        return copies


class _Start:
    """A session that has been reset and not stepped."""

    def __init__(self, session: Any, result: StepResult[Any], group: dict[str, Any]) -> None:
        self.session = session
        self.result = result
        self.group = group
        """What the rows of its group have in common."""


class _Played:
    """One rollout. TRL sees `reset`, `get_reward`, and the tools that a subclass has."""

    def __init__(self, source: TRLEnvironments) -> None:
        self._source = source
        self._session: Any = None
        self._reward = 0.0
        self._is_over = False
        self._ending: Ending | None = None
        self._error: EnvTorchError | None = None
        """What went wrong that is no ending of an episode, such as a token that has expired."""

    def reset(self, **row: Any) -> str:
        """Begin an episode; its first observation."""
        self._close()
        self._reward, self._is_over, self._ending, self._error = 0.0, False, None, None
        try:
            start = self._source._start(self, row)
        except EnvTorchError as error:
            self._ending = ending_of(error, {}, has_acted=False)
            if self._ending is not Ending.LOST:
                raise
            return ""
        self._session = start.session
        return observation_text(start.result.observation)

    def get_reward(self) -> float | None:
        """The sum of the steps' rewards; None if the episode was lost, or the environment raised.

        Raises what a tool has raised that says nothing about the episode: TRL shows a tool's errors to the
        model alone.
        """
        if self._error is not None:
            raise self._error
        return self._reward if self._ending is None or self._ending.is_scored else None

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        if self._error is not None:
            raise self._error
        if self._ending is not None:
            raise RuntimeError(f"the episode has ended: {self._ending}")
        if self._is_over:
            raise RuntimeError("the episode is over")
        try:
            result = self._session.step(self._action(name, arguments))
            reward = finite_total([self._reward, reward_in(result) or 0.0])
        except EnvTorchError as error:
            self._ending = ending_of(error, {}, has_acted=True)
            self._error = error if self._ending is None else None
            raise
        self._reward = reward
        self._is_over = result.done
        return observation_text(result.observation)

    def _action(self, name: str, arguments: dict[str, Any]) -> Any:
        if takes_tool_calls(type(self._session)):
            return CallToolAction(tool_name=name, arguments=arguments)
        return _action_class(type(self._session))(**arguments)

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            _close_quietly(session)


def _action_class(client: type[EnvClient[Any, Any, Any]]) -> Any:
    arguments = type_arguments(client, EnvClient)
    if not arguments or not isinstance(arguments[0], type):
        raise ConfigurationError(
            f"{client.__name__} does not say which action it takes: use EnvClient[Action, Observation, State]"
        )
    return arguments[0]


def _tool_of(action: type) -> Tool:
    """An action class as a tool: `PressButtonAction` is `press_button`."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", action.__name__.removesuffix("Action") or "act").lower()
    schema = TypeAdapter(action).json_schema()
    schema.get("properties", {}).pop("metadata", None)
    return Tool(name=name, description=(action.__doc__ or "").strip(), input_schema=schema)


def _close_quietly(session: Any) -> None:
    try:
        session.close()
    except EnvTorchError as error:
        logger.debug("a session could not be closed: %s", error)
