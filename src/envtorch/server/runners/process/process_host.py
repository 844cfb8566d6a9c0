"""An environment in another process, as the doors see it: its calls are values for the runner to carry."""

from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from envtorch.env import load_object
from envtorch.errors import ConfigurationError, EnvironmentFailed, EnvTorchError
from envtorch.protocol.envelope import Encoded
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.protocol.host import Answers, Calls, Replies, Simulation, simulate
from envtorch.server.runners.process.process_messages import Call, Observed, Ready, Told
from envtorch.types import EnvironmentMetadata

__all__ = ["RemoteHost"]


class RemoteHost:
    """The face of `EnvironmentHost`, whose flows yield `Call`s. Observations pass as bytes."""

    def __init__(self, ready: Ready) -> None:
        self.name = ready.name
        self.has_tools = ready.has_tools

    def reset(self, options: Mapping[str, Any], *, strict: bool, format: Format = JSON) -> Calls:
        call = Call("reset", format.name, strict, values=MSGPACK.write(dict(options)))
        return _encoded((yield call), format)

    def step(
        self,
        action: bytes | Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        strict: bool,
        format: Format = JSON,
    ) -> Calls:
        if isinstance(action, bytes):
            given = MSGPACK.write(dict(options)) if options else b""
            return _encoded((yield Call("step", format.name, strict, action, given)), format)
        both = MSGPACK.write([dict(action), dict(options)])
        return _encoded((yield Call("step", format.name, strict, values=both)), format)

    def reply(
        self, request: Simulation, *, strict: bool, format: Format = JSON, timeout_s: float | None = None
    ) -> Replies:
        return simulate(self, request, strict=strict, format=format, timeout_s=timeout_s)

    def state(self, format: Format = JSON) -> Answers:
        return _bytes((yield Call("state", format.name)))

    def state_class(self) -> Generator[Any, Any, type]:
        """Its class, if this process can load it too; the name of one is all that crosses."""
        name = (yield Call("state_class")).data.decode()
        try:
            found = load_object(name)
        except (ConfigurationError, ImportError) as error:
            raise EnvironmentFailed(f"the state's class {name} cannot be loaded") from error
        if not isinstance(found, type):
            raise EnvironmentFailed(f"the state's class {name} cannot be loaded")
        return found

    def metadata(self) -> Generator[Any, Any, EnvironmentMetadata]:
        return EnvironmentMetadata.model_validate_json((yield Call("metadata")).data)

    def list_tools(self) -> Answers:
        return _bytes((yield Call("list_tools")))

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Answers:
        return _bytes((yield Call("call_tool", values=MSGPACK.write([name, dict(arguments)]))))

    def tool_result(self, name: str, arguments: Mapping[str, Any]) -> Answers:
        return _bytes((yield Call("tool_result", values=MSGPACK.write([name, dict(arguments)]))))

    def tasks(self, method: str, *args: Any) -> Generator[Any, Any, Any]:
        try:
            told = yield Call("tasks", values=MSGPACK.write([method, *args]))
        except EnvTorchError as error:
            if error.details.get("exception") == "IndexError":
                raise IndexError(error.message) from error
            raise
        return msgspec.json.decode(told.data)

    def close(self) -> Generator[Any, Any, None]:
        yield Call("close")


def _bytes(told: Told) -> bytes:
    return told.data


def _encoded(told: Observed, format: Format) -> Encoded:
    return Encoded(
        format=format,
        observation=told.observation,
        reward=told.reward,
        done=told.done,
        metadata=told.metadata,
        terminated=told.terminated,
        truncated=told.truncated,
    )
