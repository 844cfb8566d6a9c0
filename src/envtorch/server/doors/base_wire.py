"""The base wire on one socket: one session, one reply for each frame, in order."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context

from envtorch.errors import MessageTooLarge, NotAllowed
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.host import failure_of
from envtorch.protocol.ledger import CallOutcome
from envtorch.protocol.messages import Close, Mcp, Request, ResetMessage, StateMessage, StepMessage, decode
from envtorch.protocol.wire import Reply, error_reply, mcp_reply, observation_frame, state_reply
from envtorch.server.doors.mcp_rpc import RpcDoor
from envtorch.server.sessions.session import Session
from envtorch.server.transport.connection import Backlog, Line
from envtorch.settings import ServerMode

__all__ = ["BaseConversation"]

WAITING_LIMIT = 16
"""How many frames may wait for the answer to the one before them; then no more are read."""


class BaseConversation:
    """OpenEnv's `/ws`, from the first frame to the last."""

    def __init__(self, line: Line, rpc: RpcDoor, mode: ServerMode, max_bytes: int) -> None:
        self._line = line
        self._max_bytes = max_bytes
        self._backlog = Backlog(line, requests=WAITING_LIMIT, size=max_bytes)
        self._finish: Callable[[], object] | None = None
        self._rpc = rpc
        self._mode = mode
        self._session: Session | None = None
        self._waiting: deque[bytes] = deque()
        self._is_busy = False
        self._is_over = False
        self._is_answering = False
        self._context = copy_context()  # the handshake's: its headers may carry the caller's trace

    def begin(self, session: Session, finish: Callable[[], object]) -> None:
        """Answer from now on, in this session; `finish` is called when the client says that it is done."""
        self._session = session
        self._finish = finish

    def take(self, frame: bytes) -> None:
        """Answer a frame when those before it are answered."""
        if self._is_over or self._session is None:
            return
        if self._is_busy or self._is_answering or self._waiting or not self._line.has_room(self._go_on):
            self._waiting.append(frame)
            self._backlog.add(len(frame))
            return
        self._is_answering = True
        self._answer_frame(self._session, frame)
        self._is_answering = False
        self._answer_next(self._session)

    def _answer_next(self, session: Session) -> None:
        """Answer what waits. An answer that is there at once comes back here, and is not nested."""
        if self._is_answering:
            return
        self._is_answering = True
        while self._waiting and not (self._is_busy or self._is_over) and self._line.has_room(self._go_on):
            frame = self._waiting.popleft()
            self._answer_frame(session, frame)
            self._backlog.remove(len(frame))
        self._is_answering = False

    def _go_on(self) -> None:
        """A frame is answered, or what was unsent has been sent."""
        if self._session is not None:
            self._answer_next(self._session)

    def _answer_frame(self, session: Session, frame: bytes) -> None:
        self._is_busy = True
        try:
            if len(frame) > self._max_bytes:
                raise MessageTooLarge.of(len(frame), self._max_bytes, "the server's")
            self._context.run(self._answer, session, decode(frame))
        except Exception as error:
            self._reply(_failed(error).frame())

    def _answer(self, session: Session, request: Request) -> None:
        if isinstance(request, ResetMessage | StepMessage | StateMessage):
            session.submit(self._call(request)).then(self._settled)
        elif isinstance(request, Mcp):
            task = asyncio.get_running_loop().create_task(self._call_tools(session, request))
            task.add_done_callback(lambda task: self._reply(task.result().frame()))
        elif isinstance(request, Close):
            self._is_over = True
            self._line.close()
            if self._finish is not None:
                self._finish()

    def _call(self, request: ResetMessage | StepMessage | StateMessage) -> Call:
        if self._mode is ServerMode.PRODUCTION:
            raise NotAllowed(
                f"{type(request).__name__.lower()} is simulation control, and this server runs in "
                "production mode: use the environment's tools"
            )
        if isinstance(request, StepMessage):
            return Call("step", bytes(request.data))
        return Call.reset(request.data) if isinstance(request, ResetMessage) else Call("state")

    async def _call_tools(self, session: Session, request: Mcp) -> Reply:
        try:
            return mcp_reply(await self._rpc.answer(bytes(request.data), own=session))
        except Exception as error:
            return _failed(error)

    def _settled(self, outcome: CallOutcome) -> None:
        try:
            frame = _frame_of(outcome)
        except Exception as error:
            frame = _failed(error).frame()
        self._reply(frame)

    def _reply(self, frame: bytes) -> None:
        self._is_busy = False
        self._line.send(frame)
        self._go_on()


def _frame_of(outcome: CallOutcome) -> bytes:
    if outcome.error is not None:
        return error_reply(outcome.error).frame()
    if isinstance(outcome.result, Encoded):
        return observation_frame(outcome.result)
    return state_reply(outcome.result).frame()


def _failed(error: Exception) -> Reply:
    """The answer to a request that failed; a fault of the server is that request's alone."""
    return error_reply(failure_of("request", error))
