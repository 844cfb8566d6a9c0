"""An environment that is recorded: the face of a `Host`, which writes down what passes through."""

from collections.abc import Generator, Mapping
from typing import Any

from envtorch.protocol.envelope import Encoded
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.host import Answers, Calls, Host, Replies, Simulation, simulate
from envtorch.recording.tape import Given, Tape, Timing
from envtorch.types import EnvironmentMetadata

__all__ = ["RecordedHost"]


class RecordedHost:
    """Passes every call on to the `host` behind it. What changes nothing is not recorded."""

    def __init__(self, host: Host, tape: Tape) -> None:
        self.host = host
        self.tape = tape

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def has_tools(self) -> bool:
        return self.host.has_tools

    # What is recorded.

    def reset(self, options: Mapping[str, Any], *, strict: bool, format: Format = JSON) -> Calls:
        self.tape.require_disk()
        timing, given = Timing.now(), Given.of(options)
        came: Encoded | BaseException | None = None
        try:
            came = yield from self.host.reset(options, strict=strict, format=format)
        except BaseException as error:
            came = error
            raise
        finally:
            assert came is not None
            self.tape.reset(given, timing, came, strict=strict)
        return came

    def step(
        self,
        action: bytes | Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        strict: bool,
        format: Format = JSON,
    ) -> Calls:
        self.tape.require_disk()
        timing, given, also = Timing.now(), Given.of(action, format), Given.of(options)
        came: Encoded | BaseException | None = None
        try:
            came = yield from self.host.step(action, options, strict=strict, format=format)
        except BaseException as error:
            came = error
            raise
        finally:
            assert came is not None
            self.tape.stepped(given, also, timing, came, strict=strict)
        return came

    def reply(
        self, request: Simulation, *, strict: bool, format: Format = JSON, timeout_s: float | None = None
    ) -> Replies:
        return simulate(self, request, strict=strict, format=format, timeout_s=timeout_s)

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Answers:
        return self._tool(name, arguments, self.host.call_tool(name, arguments), "value")

    def tool_result(self, name: str, arguments: Mapping[str, Any]) -> Answers:
        return self._tool(name, arguments, self.host.tool_result(name, arguments), "mcp")

    def _tool(self, name: str, arguments: Mapping[str, Any], call: Answers, form: str) -> Answers:
        self.tape.require_disk()
        timing, given = Timing.now(), Given.of(arguments)
        came: bytes | BaseException | None = None
        try:
            came = yield from call
        except BaseException as error:
            came = error
            raise
        finally:
            assert came is not None
            self.tape.called_tool(name, given, timing, came, form=form)
        return came

    def close(self) -> Generator[Any, Any, None]:
        self.tape.close()
        yield from self.host.close()

    # What is only asked.

    def state(self, format: Format = JSON) -> Answers:
        return self.host.state(format)

    def state_class(self) -> Generator[Any, Any, type]:
        return self.host.state_class()

    def metadata(self) -> Generator[Any, Any, EnvironmentMetadata]:
        return self.host.metadata()

    def list_tools(self) -> Answers:
        return self.host.list_tools()

    def tasks(self, method: str, *args: Any) -> Generator[Any, Any, Any]:
        return self.host.tasks(method, *args)
