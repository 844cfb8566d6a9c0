"""The base wire on one socket: one session, one reply for each frame, in order."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context

from envtorch.errors import EnvTorchError, InvalidAction, MessageTooLarge, NotAllowed
from envtorch.protocol.formats import JSON
from envtorch.protocol.messages import Close, Mcp, Request, Step, action_in, decode
from envtorch.protocol.wire import Reply, error_reply, mcp_reply
from envtorch.server.doors.mcp_rpc import RpcDoor
from envtorch.server.sessions.session import Session
from envtorch.server.transport.connection import Backlog, Line
from envtorch.settings import ServerMode

__all__ = ["BaseConversation"]

WAITING_LIMIT = 16
"""How many requests may wait for their turn before no more are read."""


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
        self._may_step = mode is ServerMode.SIMULATION
        self._context = copy_context()  # the handshake's: its headers may carry the caller's trace

    def begin(self, session: Session, finish: Callable[[], object]) -> None:
        """Answer from now on, in this session; `finish` is called when the client says that it is done."""
        self._session = session
        self._finish = finish

    def take(self, frame: bytes) -> None:
        """Answer a frame at once, or when those before it are answered."""
        session = self._session
        if self._is_over or session is None:
            return
        if not self._is_busy:
            self._answer(session, frame)
            return
        self._waiting.append(frame)
        self._backlog.add(len(frame))

    def _answer(self, session: Session, frame: bytes) -> None:
        try:
            if len(frame) > self._max_bytes:
                raise MessageTooLarge.of(len(frame), self._max_bytes, "the server's")
            if not (self._may_step and self._step_at_once(session, frame)):
                self._take_up(session, decode(frame))
        except EnvTorchError as error:
            self._line.send(error_reply(error).frame())

    def _step_at_once(self, session: Session, frame: bytes) -> bool:
        """Answer a frame like most, of an environment like many; False, and nothing done, for any other."""
        action = action_in(frame)
        if action is None:
            return False
        try:
            reply = session.step_at_once(action)
        except InvalidAction:
            request = decode(frame)  # raises, if it is the frame that is wrong
            if type(request) is Step and bytes(request.data) == action:
                raise
            return False
        if reply is None:
            return False
        self._line.send(reply.frame())
        return True

    def _take_up(self, session: Session, request: Request) -> None:
        if type(request) is Step and self._may_step:
            action = bytes(request.data)
            reply = session.step_at_once(action)
            if reply is not None:
                self._line.send(reply.frame())
                return
            if session.start_step(action, JSON, self._replied) is not None:
                self._is_busy = True
                return
        if isinstance(request, Close):
            self._is_over = True
            self._line.close()
            if self._finish is not None:
                self._finish()
            return
        self._is_busy = True
        work = self._reply(session, request)
        task = asyncio.get_running_loop().create_task(work, context=self._context)
        task.add_done_callback(lambda task: self._replied(task.result(), None))

    async def _reply(self, session: Session, request: Request) -> Reply:
        try:
            if isinstance(request, Mcp):
                return mcp_reply(await self._rpc.answer(bytes(request.data), own=session))
            assert not isinstance(request, Close)
            if self._mode is ServerMode.PRODUCTION:
                raise NotAllowed(
                    f"{type(request).__name__.lower()} is simulation control, and this server runs in "
                    "production mode: use the environment's tools"
                )
            flow = session.host.reply(request, strict=False)
            return await (session.step(flow) if isinstance(request, Step) else session.run(flow))
        except EnvTorchError as error:
            return error_reply(error)

    def _replied(self, reply: Reply | None, error: EnvTorchError | None) -> None:
        self._is_busy = False
        reply = reply if error is None else error_reply(error)
        assert reply is not None
        self._line.send(reply.frame())
        while self._waiting and not (self._is_busy or self._is_over):
            assert self._session is not None
            frame = self._waiting.popleft()
            self._answer(self._session, frame)
            self._backlog.remove(len(frame))
