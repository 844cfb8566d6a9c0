"""`WS /ws` on the extended wire: many sessions on one socket, each request answered exactly once.

The socket is only a way in. Requests belong to their session: when the socket goes, they run on, and
their replies wait in the session's ledger for whoever takes it up again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec

from envtorch.errors import (
    EnvTorchError,
    InvalidAction,
    MessageTooLarge,
    NotAllowed,
    ProtocolError,
    SessionLost,
    UnknownMessage,
)
from envtorch.protocol.arguments import timeout_of
from envtorch.protocol.batch import Share, Steps
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.extended import (
    MOST_IN_FRAME,
    Attach,
    Cancel,
    ForkRequest,
    Message,
    Open,
    control_data,
    error_reply,
    read_envelope,
    read_frame,
)
from envtorch.protocol.formats import READ_ERRORS, Format
from envtorch.protocol.host import failure_of
from envtorch.protocol.ledger import CallOutcome, digest_of
from envtorch.protocol.messages import read_json, write_json
from envtorch.protocol.wire import Reply
from envtorch.server.doors.answer_frames import AnswerFrames, data_size
from envtorch.server.doors.mcp_rpc import OwnCall, RpcDoor
from envtorch.server.doors.session_reply import session_reply
from envtorch.server.sessions.batch_steps import StepsTogether
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.remote_sessions import HeldByPeer
from envtorch.server.sessions.session import Session
from envtorch.server.transport.connection import Backlog, Line
from envtorch.settings import ServerMode

__all__ = ["ExtendedConversation"]

TAKEN_OVER = 4000
"""The close code for a socket whose last session another socket has taken up."""

WAITING_LIMIT = 256
"""How many requests of a socket may wait for their answers before no more are read."""
WAITING_PER_CHANNEL = 4
"""How many more may wait for each session on the socket."""

Control = Callable[[Message], Coroutine[Any, Any, Reply]]


class ExtendedConversation:
    """`envtorch.v1` on one socket, from its first frame to its last."""

    def __init__(
        self,
        line: Line,
        format: Format,
        sessions: Sessions,
        rpc: RpcDoor,
        mode: ServerMode,
        max_bytes: int,
    ) -> None:
        self._line = line
        self._max_bytes = max_bytes
        self._backlog = Backlog(line, requests=WAITING_LIMIT, size=max_bytes)
        self._format = format
        self._sessions = sessions
        self._rpc = rpc
        self._mode = mode
        self._channels: dict[int, Session] = {}
        self._awaited: dict[int, list[Message]] = {}
        """Channels whose session is being opened or found, each with every `close` that came meanwhile."""
        self._far = sessions.peers.channels(format, self._send, self._room, self._far_lost)
        self._inbox: deque[Message] = deque()
        """Requests that were read and not accepted, as too much is unsent."""
        self._drained = asyncio.Event()
        self._answers = AnswerFrames(line, format, self._has_several)
        self._is_over = False
        self._context = copy_context()  # the handshake's: its headers may carry the caller's trace
        self._tasks: set[asyncio.Task[Any]] = set()
        self._controls: dict[str, Control] = {
            "session": partial(self._bind, self._open),
            "attach": partial(self._bind, self._attach),
            "cancel": self._cancel,
        }

    async def serve(self) -> None:
        """Converse until the socket ends; then let the sessions go, to be taken up again or to expire."""
        self._sessions.drain_listeners.add(self._say_draining)
        if self._sessions.is_leaving:
            self._say_draining()
        try:
            await self._line.converse(self)
        finally:
            self._is_over = True
            self._answers.close()
            self._drained.set()
            self._sessions.drain_listeners.discard(self._say_draining)
            for session in set(self._channels.values()):
                session.drop(self)
            self._channels.clear()
            self._far.close()

    # In.

    def take(self, frame: bytes) -> None:
        """Answer what can be answered at once, and start the rest."""
        if len(frame) > self._max_bytes:
            self._refuse(frame)
            return
        try:
            batch = read_frame(frame, self._format)
        except EnvTorchError as error:
            self._send(Message.of(error_reply(error, self._format), id=None, ch=0))
            return
        self._answers.gather()
        for message in batch:
            if self._inbox or not self.has_room():
                self._inbox.append(message)
                self._backlog.add(data_size(message))
            else:
                self._dispatch_or_refuse(message)
        self._answers.flush()

    def has_room(self) -> bool:
        """Whether another request may be begun, as no more than `UNSENT_BYTES` of answers are unsent."""
        return self._answers.has_room(self._go_on)

    def _go_on(self) -> None:
        """What was unsent has been sent: begin what was held back, in its order."""
        if self._is_over:
            return
        self._drained.set()
        self._answers.gather()
        for session in list(self._channels.values()):
            session.proceed()
        while self._inbox and self.has_room():
            message = self._inbox.popleft()
            self._backlog.remove(data_size(message))
            self._dispatch_or_refuse(message)
        self._answers.flush()

    async def _room(self) -> None:
        """Wait while too much is unsent, and no longer than the socket lasts."""
        while not (self._is_over or self.has_room()):
            self._drained.clear()
            await self._drained.wait()

    def _dispatch_or_refuse(self, message: Message) -> None:
        try:
            self._dispatch(message)
        except Exception as error:
            self._answer(message, self._failed(error))

    def _refuse(self, frame: bytes) -> None:
        """Answer a frame that is too large, under its request's id where it is one request."""
        asked = read_envelope(frame, self._format)
        refusal = MessageTooLarge.of(len(frame), self._max_bytes, "the server's")
        self._answer(asked or Message("error"), error_reply(refusal, self._format))

    def _dispatch(self, message: Message) -> None:
        if message.id is None:
            raise ProtocolError("every request on this wire carries an id, a whole number")
        timeout_of(message.timeout_s)
        if message.type == "steps":
            self._steps(message, message.id)
            return
        if message.type in ("session", "attach"):
            self._reserve(message.ch)
        control = self._controls.get(message.type)
        if control is not None and not (message.type == "cancel" and message.ch in self._far.held):
            self._spawn(self._control(message, control))
            return
        session = self._channels.get(message.ch)
        if message.type == "close" and message.ch in self._awaited:
            self._awaited[message.ch].append(message)
            self._backlog.add(data_size(message))
        elif session is None:
            self._forward(message)
        elif message.type == "close":
            # Now, not when its task gets to run: by then the socket may be gone, and the session detached.
            del self._channels[message.ch]
            self._spawn(self._control(message, partial(self._release, session)))
        else:
            self._submit(session, message, message.id)

    def _submit(self, session: Session, message: Message, id: int) -> None:
        """Have a request made in its session, and answer it when it is settled."""
        digest = digest_of(message.type, bytes(message.data))
        tell = partial(self._settled, message)
        if message.type == "fork":
            outcome = session.once(id, digest, message.ack, partial(self._fork, session, message))
        elif message.type == "mcp":
            asked = self._rpc.own_call(self._json_of(message), session)
            if isinstance(asked, bytes):
                outcome = session.once(id, digest, message.ack, partial(self._rpc_elsewhere, session, asked))
            else:
                outcome = self._call(session, asked.call, message, id, digest)
            tell = partial(self._mcp_settled, message, asked)
        else:
            outcome = self._call(session, self._simulation_call(message), message, id, digest)
        self._await(message, outcome, tell)

    def _call(self, session: Session, call: Call, message: Message, id: int, digest: int) -> CallOutcome:
        return self._context.run(
            session.submit,
            call,
            id=id,
            digest=digest,
            acknowledged=message.ack,
            timeout_s=message.timeout_s,
        )

    def _simulation_call(self, message: Message) -> Call:
        """`reset`, `step` or `state`."""
        if message.type not in ("reset", "step", "state"):
            raise UnknownMessage(f"Unknown message type: {message.type[:200]}")
        data = bytes(message.data)
        if message.type == "step" and not data:
            raise InvalidAction("step has no data: it is the action")
        self._require_simulation(message)
        keywords = {"timeout_s": message.timeout_s} if message.timeout_s is not None else {}
        if message.type == "step" and keywords:
            return Call.step(data, self._format, strict=True, keywords=keywords)
        return Call(message.type, data, self._format.name, strict=True)

    def _await(self, message: Message, outcome: CallOutcome, tell: Callable[[CallOutcome], None]) -> None:
        """Answer with an outcome, now or when it is there. A socket with too many that wait is not read."""
        if outcome.is_settled:
            self._tell(message, tell, outcome)
            return
        self._backlog.add(data_size(message))
        outcome.then(partial(self._arrived, message, tell))

    def _arrived(self, message: Message, tell: Callable[[CallOutcome], None], outcome: CallOutcome) -> None:
        self._backlog.remove(data_size(message))
        self._tell(message, tell, outcome)

    def _tell(self, message: Message, tell: Callable[[CallOutcome], None], outcome: CallOutcome) -> None:
        """Answer with an outcome. One that cannot be written is this request's error, and no other's."""
        try:
            tell(outcome)
        except Exception as error:
            self._answer(message, self._failed(error))

    def _steps(self, message: Message, id: int) -> None:
        """The steps of many sessions: one call where their author wrote that, else each in its session.

        What is settled at the same time is answered in one message.
        """
        asked = control_data(message, Steps, self._format)
        self._require_simulation(message)
        if not asked.ch:
            raise InvalidAction("steps for no channel: name one or more in `ch`")
        if len(asked.ch) > MOST_IN_FRAME:
            raise ProtocolError(f"{len(asked.ch)} steps in a message: at most {MOST_IN_FRAME} are taken")
        if len(set(asked.ch)) < len(asked.ch):
            raise ProtocolError("a channel takes one step in a message, and one is named twice")
        sessions = [self._channels.get(channel) for channel in asked.ch]
        if message.timeout_s is None:
            together = StepsTogether.of(asked, sessions, id, self._format)
            if together is not None:
                self._step_together(together, asked, message, id)
                return
        for channel, session, action in zip(asked.ch, sessions, asked.rows(self._format), strict=True):
            one = Message("step", id, channel, action, message.timeout_s, message.ack)
            if session is None:
                self._forward_or_refuse(one)
                continue
            digest = digest_of("step", bytes(action))
            outcome = self._call(session, self._simulation_call(one), one, id, digest)
            self._await(one, outcome, partial(self._stepped, one))

    def _step_together(self, together: StepsTogether, asked: Steps, message: Message, id: int) -> None:
        outcomes = together.run(asked, id, message.ack, self._format)
        if together.columns is not None:
            self._send(Message("observations", id=id, ch=message.ch, data=msgspec.Raw(together.columns)))
            return
        for channel, outcome in zip(asked.ch, outcomes, strict=True):
            one = Message("step", id=id, ch=channel)
            self._tell(one, partial(self._stepped, one), outcome)

    def _forward_or_refuse(self, message: Message) -> None:
        try:
            self._forward(message)
        except Exception as error:
            self._answer(message, self._failed(error))

    def _require_simulation(self, message: Message) -> None:
        if self._mode is ServerMode.PRODUCTION:
            raise NotAllowed(f"{message.type} is simulation control; this server runs in production mode")

    def _fork(self, session: Session, message: Message) -> Coroutine[Any, Any, Reply]:
        asked = control_data(message, ForkRequest, self._format)
        self._require_simulation(message)
        return self._forked(self._sessions.fork(session, asked.n, timeout_s=message.timeout_s))

    async def _forked(self, copying: Coroutine[Any, Any, list[Session]]) -> Reply:
        copies = await copying
        told = [{"session_id": new.id, "token": new.token, "grace_s": new.unheld_s} for new in copies]
        return Reply("forked", self._format.write({"sessions": told}), self._format)

    def _json_of(self, message: Message) -> bytes:
        """The JSON-RPC request in an `mcp` message: it is JSON, whatever carries it."""
        data = bytes(message.data)
        if not self._format.is_binary:
            return data
        try:
            return write_json(self._format.read(data))
        except (*READ_ERRORS, TypeError, ValueError, OverflowError) as error:
            raise InvalidAction(f"the data of mcp is no JSON-RPC request: {error}") from None

    async def _rpc_elsewhere(self, session: Session, text: bytes) -> bytes:
        return await self._rpc.answer(text, own=session)

    def _mcp_settled(self, message: Message, asked: "OwnCall | bytes", outcome: CallOutcome) -> None:
        if isinstance(asked, bytes):
            if outcome.error is not None:
                self._settled(message, outcome)
                return
            response = outcome.result
        else:
            response = asked.response(outcome)
        data = self._format.write(read_json(response)) if self._format.is_binary else response
        self._answer(message, Reply("mcp", data, self._format))

    def _forward(self, message: Message) -> None:
        """Pass a request on to the worker that has this channel's session."""
        take = self._far.held.pop if message.type == "close" else self._far.held.get
        far = take(message.ch, None)
        if far is None:
            raise SessionLost(f"there is no session on channel {message.ch}: open or attach one first")
        size = data_size(message)
        far.forward(message, partial(self._backlog.remove, size))
        self._backlog.add(size)

    # The requests that are about sessions.

    async def _control(self, message: Message, control: Control) -> None:
        try:
            reply = await control(message)
        except Exception as error:
            reply = self._failed(error)
        self._answer(message, reply)

    def _reserve(self, channel: int) -> None:
        """Keep a channel for the session that it is getting."""
        if channel in self._awaited:
            raise ProtocolError(f"channel {channel} is getting a session already: wait for that one")
        self._awaited[channel] = []

    async def _bind(self, find: Control, message: Message) -> Reply:
        """Open or attach a session, here or at another worker, on its channel, which is reserved."""
        try:
            return await find(message)
        except HeldByPeer as found:
            self._require_free(message.ch, self._channels)
            return await self._far.take_up(found.worker, message, self._awaited[message.ch])
        finally:
            self._backlog.most_requests = WAITING_LIMIT + WAITING_PER_CHANNEL * self._session_count
            for close in self._awaited.pop(message.ch):
                self._backlog.remove(data_size(close))
                self._dispatch_or_refuse(close)

    def _require_free(self, channel: int, *taken: Container[int]) -> None:
        if any(channel in channels for channels in taken):
            raise ProtocolError(f"channel {channel} has a session already: close it, or use another channel")

    async def _open(self, message: Message) -> Reply:
        asked = control_data(message, Open, self._format)
        self._require_free(message.ch, self._channels, self._far.held)
        session = await self._sessions.open_once(asked.token, asked.grace_s, wait_s=asked.wait_s)
        if self._is_over and asked.token is None:  # nobody knows the token that it was given
            await self._sessions.release(session, "the socket that asked for it is gone")
        return await self._take_up(session, message.ch)

    async def _attach(self, message: Message) -> Reply:
        asked = control_data(message, Attach, self._format)
        worker = await self._sessions.elsewhere(asked.token)
        if worker is not None:
            raise HeldByPeer(worker)
        session = self._sessions.by_token(asked.token)
        if session is None or not session.is_usable:
            raise SessionLost("the session is gone: its grace period is over, or the server was restarted")
        if self._channels.get(message.ch) is session:
            return self._told(session)
        return await self._take_up(session, message.ch)

    async def _take_up(self, session: Session, channel: int) -> Reply:
        if self._is_over:  # the wait for a slot outlived the socket; another one may have come for it
            if self._awaited[channel]:
                await self._sessions.release(session)
            raise SessionLost("the socket that asked for the session is gone")
        self._require_free(channel, self._channels, self._far.held)
        if session in self._channels.values():
            raise ProtocolError("the session is on another channel of this socket already: use that one")
        session.hold(self)
        self._channels[channel] = session
        return self._told(session)

    def _told(self, session: Session) -> Reply:
        return session_reply(session, self._sessions, self._mode, self._format, self._max_bytes)

    async def _release(self, session: Session, message: Message) -> Reply:
        await self._sessions.release(session)
        return Reply("closed", self._format.write({}), self._format)

    async def _cancel(self, message: Message) -> Reply:
        session = self._channels.get(message.ch)
        if session is None:
            raise SessionLost(f"there is no session on channel {message.ch}")
        target = control_data(message, Cancel, self._format).id
        told = {"id": target, "cancelled": session.cancel(target)}
        return Reply("cancelled", self._format.write(told), self._format)

    # Out.

    def _settled(self, message: Message, outcome: CallOutcome) -> None:
        """Answer one request."""
        if outcome.error is not None:
            self._answer(message, error_reply(outcome.error, self._format))
            return
        result = outcome.result
        if isinstance(result, Share):
            result = result.encoded()
        if isinstance(result, Encoded):
            self._answer(message, Reply("observation", result.data(), self._format))
        elif isinstance(result, Reply):
            self._answer(message, result)
        else:
            self._answer(message, Reply("state", result, self._format))

    def _stepped(self, message: Message, outcome: CallOutcome) -> None:
        """One step of a batch is settled: answer it with the others that are settled in this turn."""
        if outcome.error is not None or not isinstance(outcome.result, Encoded):
            self._settled(message, outcome)
            return
        assert message.id is not None
        self._answers.add_step(message.id, message.ch, outcome.result)

    def _failed(self, error: Exception) -> Reply:
        """The answer to a request that failed; a fault of the server is that request's alone."""
        return error_reply(failure_of("request", error), self._format)

    def _answer(self, message: Message, reply: Reply) -> None:
        self._send(Message.of(reply, id=message.id, ch=message.ch))

    def _send(self, message: Message) -> None:
        self._answers.add(message)

    @property
    def _session_count(self) -> int:
        return len(self._channels) + len(self._far.held)

    def _has_several(self) -> bool:
        return self._session_count > 1

    def _say_draining(self) -> None:
        self._send(Message("draining"))

    # Losing the socket.

    def lost(self, session: Session) -> None:
        """Another socket has taken a session over."""
        self._channels = {ch: held for ch, held in self._channels.items() if held is not session}
        self._far_lost()

    def _far_lost(self) -> None:
        """A session left this socket for another; one that has none left is of no use to anybody."""
        if not self._channels and not self._far.held:
            self._line.close(TAKEN_OVER)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work, context=self._context)
        self._tasks.add(task)
        self._backlog.add(0)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        self._backlog.remove(0)
