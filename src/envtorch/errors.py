"""Every error EnvTorch raises, as one tree.

    EnvTorchError
    ├── ProtocolError          PROTOCOL_ERROR      the peer broke the rules of the conversation
    │   ├── InvalidJSON        INVALID_JSON        a frame that is not JSON, or not a JSON object
    │   ├── UnknownMessage     UNKNOWN_TYPE        a message type nobody knows
    │   ├── NotAllowed         NOT_ALLOWED         simulation control on a production server
    │   ├── ResetRequired      RESET_REQUIRED      a step before the first reset
    │   ├── AnswerDropped      ANSWER_DROPPED      a repeated request whose answer the server no longer keeps
    │   └── MessageTooLarge    MESSAGE_TOO_LARGE   a message above the size limit of one side
    ├── Unauthorized           UNAUTHORIZED        no token, or one the server does not take
    ├── InvalidAction          VALIDATION_ERROR    an action or message of the wrong shape
    ├── EnvironmentFailed      EXECUTION_ERROR     the environment's own code raised
    │   └── FactoryFailed      FACTORY_ERROR       the environment could not be built
    ├── Unsupported            UNSUPPORTED         this environment cannot do that
    ├── TimedOut               TIMED_OUT           no answer before the deadline
    ├── Cancelled              CANCELLED           the caller took the request back
    ├── OutOfResources         OUT_OF_RESOURCES    memory, processes or disk ran out
    ├── CapacityReached        CAPACITY_REACHED    every slot is taken; try again later
    ├── Draining               DRAINING            the server is shutting down and takes nothing new
    ├── SessionElsewhere       SESSION_ELSEWHERE   another replica has the session; try again
    ├── SessionLost            SESSION_ERROR       the session, and its episode, are gone
    ├── InternalError          INTERNAL_ERROR      a fault of the server itself; its log has the error id
    │   └── RecordingFailed    RECORDING_FAILED    the call must be recorded and cannot be; it was not made
    ├── ConnectFailed          —                   no server could be reached at that address
    │   └── EndpointFailed     —                   a model's endpoint could not be reached, or failed
    ├── PromptTooLong          —                   a conversation outgrew the model's context
    ├── ProviderFailed         —                   a server could not be started, or did not stay
    │   ├── EngineUnavailable  —                   no container engine, cluster or tool to start it with
    │   ├── ImageUnavailable   —                   there is no such image, or it could not be fetched
    │   ├── PortTaken          —                   the port that was asked for is in use
    │   ├── ServerExited       —                   the server ended before it was healthy
    │   └── NotReady           —                   the server lives, but was not healthy in time
    ├── WrongProcess           —                   used in another process than the one that made it
    ├── ClientBusy             —                   another thread is in a call on the same client
    ├── ClientClosed           —                   used after `close()`
    ├── ConfigurationError     —                   options that contradict each other
    └── MissingExtra           —                   an optional package is not installed

An error with a code travels: the server sends `code`, the message and the error's public
`details`; the client looks the code up in `BY_CODE` and raises the same class. Those without a code
never cross the wire. A fault of the infrastructure (`CapacityReached`, `Draining`, `SessionElsewhere`,
`SessionLost`, `InternalError`, `ConnectFailed`, `ProviderFailed`) is never a reward of zero. A step that is
`TimedOut` or `OutOfResources` is usually the agent's doing; `TimedOut` says in its details when it is not.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

__all__ = [
    "BY_CODE",
    "AnswerDropped",
    "Cancelled",
    "CapacityReached",
    "ClientBusy",
    "ClientClosed",
    "ConfigurationError",
    "ConnectFailed",
    "Draining",
    "EndpointFailed",
    "EngineUnavailable",
    "EnvTorchError",
    "EnvironmentFailed",
    "FactoryFailed",
    "ImageUnavailable",
    "InternalError",
    "InvalidAction",
    "InvalidJSON",
    "MessageTooLarge",
    "MissingExtra",
    "NotAllowed",
    "NotReady",
    "OutOfResources",
    "PortTaken",
    "PromptTooLong",
    "ProtocolError",
    "ProviderFailed",
    "RecordingFailed",
    "ResetRequired",
    "ServerExited",
    "SessionElsewhere",
    "SessionLost",
    "TimedOut",
    "Unauthorized",
    "UnknownMessage",
    "Unsupported",
    "WrongProcess",
    "encodable",
    "from_wire",
    "shortened",
]


MOST_CHARACTERS = 16 * 1024
"""The longest text in an error: what a caller or an environment puts into one may be of any size."""


def encodable(text: str) -> str:
    """A text that UTF-8 can carry: half a surrogate pair, which it cannot, is shown as its escape."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


def shortened(text: str) -> str:
    """A text of an error, with its middle left out where it is longer than `MOST_CHARACTERS`."""
    text = encodable(text)
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters left out) ... {text[-half:]}"


class EnvTorchError(Exception):
    """The root of the tree: catch this to catch everything EnvTorch raises."""

    code: ClassVar[str | None] = None
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, **details: Any) -> None:
        message = shortened(message)
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = _with_encodable_texts(details)
        """What the peer may know beside the message; sent along, and given back on the other side."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _with_encodable_texts(value: Any) -> Any:
    """The value, with every text in it made `encodable` and `shortened`."""
    if isinstance(value, str):
        return shortened(value)
    if type(value) is dict:
        return {_with_encodable_texts(key): _with_encodable_texts(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_with_encodable_texts, value))
    return value


def _rebuild(cls: type[EnvTorchError], message: str, details: dict[str, Any]) -> EnvTorchError:
    return cls(message, **details)


class ProtocolError(EnvTorchError):
    """The peer sent something the protocol has no place for."""

    code = "PROTOCOL_ERROR"
    http_status = 400


class InvalidJSON(ProtocolError):
    """A frame that is not JSON, or is JSON but not an object."""

    code = "INVALID_JSON"


class UnknownMessage(ProtocolError):
    """A message whose `type` nobody knows."""

    code = "UNKNOWN_TYPE"


class NotAllowed(ProtocolError):
    """Simulation control (`reset`, `step`, `state`) on a server in production mode."""

    code = "NOT_ALLOWED"
    http_status = 403


class ResetRequired(ProtocolError):
    """A step before the first `reset` of its session. The environment has not seen it."""

    code = "RESET_REQUIRED"
    http_status = 409


class AnswerDropped(ProtocolError):
    """A repeated request that was accepted before, and whose answer the server no longer keeps.

    It is not run again. What it did is done: `state()` tells where the episode stands.
    """

    code = "ANSWER_DROPPED"
    http_status = 410


class MessageTooLarge(ProtocolError):
    """A message above the size limit of one side; `details` hold `size` and `limit`, where known.

    It was not sent, or not read; the session goes on.
    """

    code = "MESSAGE_TOO_LARGE"
    http_status = 413

    @classmethod
    def of(cls, size: int, limit: int, whose: str) -> Self:
        """`whose` limit it is, as in "the server's"."""
        return cls(
            f"a message of {size:,} bytes is above {whose} limit of {limit:,} bytes", size=size, limit=limit
        )


class Unauthorized(EnvTorchError, PermissionError):
    """The server wants a token, and this one is missing, wrong or expired."""

    code = "UNAUTHORIZED"
    http_status = 401


class InvalidAction(EnvTorchError, ValueError):
    """An action, or the message around it, does not have the shape the environment declared; or a call was
    given an argument of the wrong kind."""

    code = "VALIDATION_ERROR"
    http_status = 422

    @property
    def errors(self) -> list[dict[str, Any]]:
        """What is wrong, field by field, in pydantic's form."""
        return list(self.details.get("errors", ()))

    def __str__(self) -> str:
        told = [_told(error) for error in self.errors]
        return f"{self.message} ({'; '.join(told)})" if told else self.message


def _told(error: Mapping[str, Any]) -> str:
    """What is wrong with a field; or with the whole, which has no name."""
    where, what = ".".join(map(str, error.get("loc", ()))), str(error.get("msg", ""))
    return f"{where}: {what}" if where else what


class EnvironmentFailed(EnvTorchError):
    """The environment's own code raised while it was resetting, stepping or telling its state."""

    code = "EXECUTION_ERROR"


class FactoryFailed(EnvironmentFailed):
    """The environment could not be built, so there is no session."""

    code = "FACTORY_ERROR"
    http_status = 503


class Unsupported(EnvTorchError):
    """The environment has no such ability: no tasks, no tools."""

    code = "UNSUPPORTED"
    http_status = 501


class TimedOut(EnvTorchError, TimeoutError):
    """No answer came before the deadline. The call may still have taken effect.

    `details["usable"]` says whether the session can go on, where the server knows: a call that cannot
    be stopped takes its session with it. Where no server has answered, the client says whether it was
    `is_connected`, and `is_server_late` when the call had a `timeout_s`, which the server should have kept:
    such a server is stopped, too busy, or out of reach.
    """

    code = "TIMED_OUT"
    http_status = 504


class Cancelled(EnvTorchError):
    """The caller took the request back. `details["usable"]` is as in `TimedOut`."""

    code = "CANCELLED"
    http_status = 499


class OutOfResources(EnvTorchError):
    """The environment ran out of memory, processes or disk."""

    code = "OUT_OF_RESOURCES"
    http_status = 507


class CapacityReached(EnvTorchError):
    """Every session the server may hold is taken."""

    code = "CAPACITY_REACHED"
    http_status = 503

    @classmethod
    def of(
        cls, active_sessions: int, max_sessions: int, stuck_sessions: int = 0, *, copies: int | None = None
    ) -> Self:
        """`copies` are those of a fork for which there is no room; without them, it is one more session."""
        message = (
            f"Server at capacity: {active_sessions}/{max_sessions} sessions active. "
            "Cannot accept new connections."
        )
        if copies is not None:
            message = (
                f"a fork into {copies:,} {'copy' if copies == 1 else 'copies'} needs as many free sessions: "
                f"{active_sessions:,} of the server's {max_sessions:,} are taken. Ask for fewer copies, "
                "close other sessions, or serve with more (`sessions=`)."
            )
        details = {"active_sessions": active_sessions, "max_sessions": max_sessions}
        if stuck_sessions:
            verb = "is" if stuck_sessions == 1 else "are"
            message += f" {stuck_sessions} of them {verb} stuck in a call that does not return."
            details["stuck_sessions"] = stuck_sessions
        return cls(message, **details)


class Draining(EnvTorchError):
    """The server is shutting down: calls that run are answered, new ones are not taken."""

    code = "DRAINING"
    http_status = 503


class InternalError(EnvTorchError):
    """A fault of the server itself. `details["error_id"]` finds it in the server's log."""

    code = "INTERNAL_ERROR"


class RecordingFailed(InternalError):
    """The server records every call, and the disk takes no more. The call was not made."""

    code = "RECORDING_FAILED"
    http_status = 507


class SessionElsewhere(EnvTorchError):
    """The request reached another replica than `details["replica"]`, which has the session.

    It was not run, and whether the session still lives is not known here. Send it again.
    """

    code = "SESSION_ELSEWHERE"
    http_status = 503


class SessionLost(EnvTorchError):
    """The session is gone, and its episode with it. It is never replaced by a fresh one in silence."""

    code = "SESSION_ERROR"
    http_status = 404


class ConnectFailed(EnvTorchError, ConnectionError):
    """No server could be reached at that address."""


class EndpointFailed(ConnectFailed):
    """The endpoint of a model could not be reached, or failed each time that it was asked."""


class PromptTooLong(EnvTorchError):
    """A conversation has no room in the model's context, so the model was not asked to complete it."""


class ProviderFailed(EnvTorchError):
    """A server could not be started, or did not stay. `details` may hold `logs` and `exit_code`."""

    @property
    def logs(self) -> str:
        """The last lines that the server wrote; empty when it wrote nothing."""
        return str(self.details.get("logs", ""))

    def __str__(self) -> str:
        if not self.logs.strip():
            return self.message
        tail = "\n".join(f"    {line}" for line in self.logs.rstrip().splitlines())
        return f"{self.message}\n  the last lines it wrote:\n{tail}"


class EngineUnavailable(ProviderFailed):
    """There is no container engine, no cluster or no tool to start a server with."""


class ImageUnavailable(ProviderFailed):
    """There is no such image here, and it could not be fetched."""


class PortTaken(ProviderFailed):
    """The port that was asked for is in use."""


class ServerExited(ProviderFailed):
    """The server ended before it was healthy."""


class NotReady(ProviderFailed, TimeoutError):
    """The server was started and still lives, but was not healthy before the deadline."""


class WrongProcess(EnvTorchError, RuntimeError):
    """An object that was made in another process, and inherited over `os.fork`.

    A socket that two processes use mixes up their messages. Make a new object in the child process.
    """

    @classmethod
    def of(cls, what: object, pid: int) -> Self:
        """`what` was made in process `pid`."""
        name = what if isinstance(what, str) else type(what).__name__
        return cls(
            f"this {name} belongs to process {pid}, which was forked; make a new one in the child process"
        )


class ClientBusy(EnvTorchError, RuntimeError):
    """Another thread is in a call on the same blocking client. Use one client per thread."""

    @classmethod
    def interrupted(cls) -> Self:
        """What a call is told during which a signal handler of its own thread used the client."""
        return cls("a signal handler made another call while this one was waiting, and ended this one")


class ClientClosed(EnvTorchError):
    """The client was closed. `reset()` opens a new session."""


class ConfigurationError(EnvTorchError, ValueError):
    """Options that contradict each other, are of the wrong kind, or that nobody knows."""


class MissingExtra(EnvTorchError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


def _with_code(cls: type[EnvTorchError]) -> dict[str, type[EnvTorchError]]:
    found = {cls.code: cls} if cls.code is not None else {}
    for child in cls.__subclasses__():
        found |= _with_code(child)
    return found


BY_CODE: Mapping[str, type[EnvTorchError]] = _with_code(EnvTorchError)
"""Each wire code and the class that carries it."""


def from_wire(code: str | None, message: str, details: Mapping[str, Any] | None = None) -> EnvTorchError:
    """The error a peer reported. A code from a newer peer still gives an `EnvTorchError`."""
    cls = BY_CODE.get(code or "", EnvTorchError)
    return cls(message, **(details or {}))
