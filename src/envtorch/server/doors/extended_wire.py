"""`WS /ws` on the extended wire: many sessions on one socket, each request answered exactly once.

The socket is only a way in. Requests belong to their session: when the socket goes, they run on, and
their replies wait in the session's ledger for whoever takes it up again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec

from envtorch.errors import (
    Cancelled,
    EnvTorchError,
    MessageTooLarge,
    NotAllowed,
    ProtocolError,
    SessionLost,
)
from envtorch.protocol.batch import Steps
from envtorch.protocol.extended import (
    NOTHING,
    Attach,
    Cancel,
    Fork,
    Message,
    Open,
    control_data,
    error_reply,
    read_envelope,
    read_frame,
    simulation_request,
    write_frame,
)
from envtorch.protocol.formats import Format
from envtorch.protocol.messages import read_json, write_json
from envtorch.protocol.wire import Reply, mcp_reply
from envtorch.server.doors.mcp_rpc import RpcDoor
from envtorch.server.runners.thread_results import Mailbox
from envtorch.server.sessions.batches import Batch
from envtorch.server.sessions.lineups import Lineups
from envtorch.server.sessions.outcomes import Outcome
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.remote_sessions import LivesElsewhere
from envtorch.server.sessions.session import Session
from envtorch.server.transport.connection import Backlog, Line
from envtorch.server.transport.express import ExpressDelivery
from envtorch.settings import ServerMode

__all__ = ["ExtendedConversation"]

SUPPORTS = ("cancel", "batch", "channels", "steps", "columns")
WAITING_LIMIT = 256
"""How many requests of a socket may wait for their answers before no more are read."""
WAITING_PER_CHANNEL = 4
"""How many more may wait for each session on the socket."""
TAKEN_OVER = 4000
"""The close code for a socket whose last session another socket has taken up."""

Control = Callable[[Message], Coroutine[Any, Any, Reply]]
Call = Callable[[Session, Message], Coroutine[Any, Any, Reply]]


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
        self._may_step = mode is ServerMode.SIMULATION
        self._channels: dict[int, Session] = {}
        self._lineups = Lineups()
        self._far = sessions.neighbours.channels(format, self._send, self._far_lost)
        self._outbox: list[Message] = []
        self._mailbox = Mailbox.of(asyncio.get_running_loop())
        self._will_flush = self._is_over = False
        self._context = copy_context()  # the handshake's: its headers may carry the caller's trace
        self._tasks: set[asyncio.Task[Any]] = set()
        self._controls: dict[str, Control] = {
            "session": self._open,
            "attach": self._attach,
            "cancel": self._cancel,
        }
        self._calls: dict[str, Call] = {"mcp": self._mcp, "fork": self._fork}

    async def serve(self) -> None:
        """Converse until the socket ends; then let the sessions go, to be taken up again or to expire."""
        self._sessions.drain_listeners.add(self._say_draining)
        if self._sessions.draining:
            self._say_draining()
        try:
            await self._line.converse(self)
        finally:
            self._is_over = True
            self._sessions.drain_listeners.discard(self._say_draining)
            for session in set(self._channels.values()):
                session.drop(self)
            self._channels.clear()
            self._lineups.forget()
            self._far.close()

    # In.

    def take(self, frame: bytes) -> None:
        """Answer what can be answered at once, and start the rest."""
        self._mailbox.look()  # an answer that went past us may be what this frame is about
        if len(frame) > self._max_bytes:
            self._refuse(frame)
            return
        try:
            batch = read_frame(frame, self._format)
        except EnvTorchError as error:
            self._send(Message.of(error_reply(error, self._format), id=None, ch=0))
            return
        if len(batch) == 1 and not self._outbox and self._step_alone(batch[0]):
            return
        self._will_flush = True
        for message in batch:
            try:
                self._dispatch(message)
            except EnvTorchError as error:
                self._answer(message, error_reply(error, self._format))
        self._flush()

    def _refuse(self, frame: bytes) -> None:
        """Answer a frame that is too large, under its request's id where it is one request."""
        asked = read_envelope(frame, self._format)
        refusal = MessageTooLarge.of(len(frame), self._max_bytes, "the server's")
        self._answer(asked or Message("error"), error_reply(refusal, self._format))

    def _step_alone(self, message: Message) -> bool:
        """Answer one new step that need not wait, as most frames are; False, and nothing done, otherwise."""
        session = self._stepped_by(message)
        if session is None:
            return False
        assert message.id is not None
        settled = session.settle_step(message.id, bytes(message.data), self._format, message.ack)
        if settled is None:
            return False
        reply = settled.reply if settled.error is None else error_reply(settled.error, self._format)
        assert reply is not None
        told = Message(reply.type, message.id, message.ch, msgspec.Raw(reply.data))
        self._line.send(self._format.write(told), binary=self._format.is_binary)
        return True

    def _stepped_by(self, message: Message) -> Session | None:
        """The session that a message steps, as for the first time, with no deadline; None for all else."""
        if message.type != "step" or message.timeout_s is not None or not self._may_step:
            return None
        session = self._channels.get(message.ch)
        if session is None or message.id is None or message.id <= session.ledger.newest:
            return None
        return session if message.data is not NOTHING else None

    def _dispatch(self, message: Message) -> None:
        if message.id is None:
            raise ProtocolError("every request on this wire carries an id, a whole number")
        if message.type == "steps":
            self._steps(message, message.id)
            return
        if self._step(message, message.id):
            return
        control = self._controls.get(message.type)
        if control is not None and not (message.type == "cancel" and message.ch in self._far.held):
            self._spawn(self._control(message, control))
            return
        session = self._channels.get(message.ch)
        if session is None:
            self._forward(message)
            return
        if message.type == "close":
            # Now, not when its task gets to run: by then the socket may be gone, and the session detached.
            del self._channels[message.ch]
            self._lineups.forget()
            self._spawn(self._control(message, partial(self._release, session)))
            return
        if message.ack is not None:
            session.ledger.acknowledge(message.ack)
        call = self._calls.get(message.type, self._simulate)
        self._await(message, session.once(message.id, partial(call, session, message), self._context))

    def _step(self, message: Message, id: int) -> bool:
        """Take a new step the short way; False when it has to go the long one."""
        session = self._stepped_by(message)
        if session is None:
            return False
        delivery = self._express(session, message, id)
        tell = partial(self._stepped, message, delivery)
        action = bytes(message.data)
        self._backlog.add(len(action))
        if session.step_once(id, action, self._format, tell, message.ack, delivery):
            return True
        self._backlog.remove(len(action))
        return False

    def _express(self, session: Session, message: Message, id: int) -> ExpressDelivery | None:
        """A way past the loop, for the answer to the only call that runs."""
        if not session.delivers or self._sessions.is_busy or len(self._channels) != 1 or self._outbox:
            return None
        direct = self._line.direct()
        return (
            ExpressDelivery(direct, self._format, id=id, channel=message.ch) if direct is not None else None
        )

    def _stepped(self, message: Message, delivery: ExpressDelivery | None, outcome: Outcome) -> None:
        self._backlog.remove(_size(message))
        if delivery is None or not delivery.is_claimed:  # else its thread has answered
            self._answered(message, outcome)

    def _await(self, message: Message, outcome: Outcome) -> None:
        """Answer with an outcome, now or when it is there."""
        if outcome.done():
            self._answered(message, outcome)
        else:
            assert isinstance(outcome, asyncio.Future)
            self._backlog.add(_size(message))
            outcome.add_done_callback(partial(self._answered_later, message))

    def _answered_later(self, message: Message, outcome: Outcome) -> None:
        self._backlog.remove(_size(message))
        self._answered(message, outcome)

    def _steps(self, message: Message, id: int) -> None:
        """Take the steps of many sessions together; one by one, those that cannot be."""
        asked = control_data(message, Steps, self._format)
        postponed = self._batch(message, id, asked)
        if not postponed:
            return
        actions = asked.rows(self._format)
        for place in postponed:
            one = Message("step", id, asked.ch[place], actions[place], message.timeout_s, message.ack)
            try:
                self._dispatch(one)
            except EnvTorchError as error:
                self._answer(one, error_reply(error, self._format))

    def _batch(self, message: Message, id: int, asked: Steps) -> Sequence[int]:
        """Answer a batch at once; the places in it of those that are left."""
        everybody = range(len(asked.ch))
        if message.timeout_s is not None or not self._may_batch:
            return everybody
        lineup = self._lineups.of(asked.ch, self._channels)
        if lineup is None:
            return everybody
        batch = Batch.of(asked, lineup, id=id, format=self._format, acknowledged=message.ack)
        if batch is None:
            return everybody
        columns = batch.run()
        if columns is not None:
            self._send(Message("observations", id=id, ch=message.ch, data=msgspec.Raw(columns)))
        for channel in batch.apart:
            outcome = self._channels[channel].outcome(id)
            assert outcome is not None
            self._answered(Message("step", id=id, ch=channel), outcome)
        return [asked.ch.index(channel) for channel in batch.postponed]

    @property
    def _may_batch(self) -> bool:
        return self._mode is ServerMode.SIMULATION and self._sessions.is_plain

    async def _simulate(self, session: Session, message: Message) -> Reply:
        request = simulation_request(message, self._format)
        self._require_simulation(message)
        flow = session.host.reply(request, strict=True, format=self._format, timeout_s=message.timeout_s)
        if message.type == "step":
            return await session.step(flow, timeout_s=message.timeout_s)
        return await session.run(flow, message.type, timeout_s=message.timeout_s)

    def _require_simulation(self, message: Message) -> None:
        if self._mode is ServerMode.PRODUCTION:
            raise NotAllowed(f"{message.type} is simulation control; this server runs in production mode")

    async def _fork(self, session: Session, message: Message) -> Reply:
        asked = control_data(message, Fork, self._format)
        self._require_simulation(message)
        copies = await self._sessions.fork(session, asked.n, timeout_s=message.timeout_s)
        told = [{"session_id": new.id, "token": new.token, "grace_s": new.unheld_s} for new in copies]
        return Reply("forked", self._format.write({"sessions": told}), self._format)

    async def _mcp(self, session: Session, message: Message) -> Reply:
        if not self._format.is_binary:
            return mcp_reply(await self._rpc.answer(bytes(message.data), own=session))
        asked = write_json(self._format.read(bytes(message.data)))  # JSON-RPC is JSON, whatever carries it
        answer = read_json(await self._rpc.answer(asked, own=session))
        return Reply("mcp", self._format.write(answer), self._format)

    def _forward(self, message: Message) -> None:
        """Pass a request on to the worker that has this channel's session."""
        far = self._far.held.get(message.ch)
        if far is None:
            raise SessionLost(f"there is no session on channel {message.ch}: open or attach one first")
        far.forward(message)

    # The requests that are about sessions.

    async def _control(self, message: Message, control: Control) -> None:
        try:
            reply = await control(message)
        except LivesElsewhere as found:
            reply = await self._take_up_elsewhere(found.worker, message)
        except EnvTorchError as error:
            reply = error_reply(error, self._format)
        self._answer(message, reply)

    async def _open(self, message: Message) -> Reply:
        asked = control_data(message, Open, self._format)
        if message.ch in self._channels or message.ch in self._far.held:
            raise ProtocolError(f"channel {message.ch} has a session already")
        session = await self._sessions.open_once(asked.token, asked.grace_s, wait_s=asked.wait_s)
        return self._take_up(session, message.ch)

    async def _attach(self, message: Message) -> Reply:
        asked = control_data(message, Attach, self._format)
        worker = await self._sessions.elsewhere(asked.token)
        if worker is not None:
            raise LivesElsewhere(worker)
        session = self._sessions.by_token(asked.token)
        if session is None or not session.is_usable:
            raise SessionLost("the session is gone: its grace period is over, or the server was restarted")
        return self._take_up(session, message.ch)

    async def _take_up_elsewhere(self, worker: int, message: Message) -> Reply:
        try:
            reply = await self._far.take_up(worker, message)
        except EnvTorchError as error:
            return error_reply(error, self._format)
        if message.ch in self._far.held:
            self._channels.pop(message.ch, None)
        return reply

    def _take_up(self, session: Session, channel: int) -> Reply:
        if self._is_over:  # the wait for a slot outlived the socket; another one may have come for it
            raise SessionLost("the socket that asked for the session is gone")
        session.hold(self)
        self._far.held.pop(channel, None)
        self._channels[channel] = session
        self._backlog.most_requests = WAITING_LIMIT + WAITING_PER_CHANNEL * len(self._channels)
        told = {
            "session_id": session.id,
            "token": session.token,
            "grace_s": session.unheld_s,
            "last_id": session.ledger.newest,
            "supports": self._supported(session),
            "max_message_bytes": self._max_bytes,
        }
        return Reply("session", self._format.write(told), self._format)

    def _supported(self, session: Session) -> list[str]:
        """What may be asked of a session here. Whether its environment can be copied, only a copy tells."""
        can_fork = self._mode is ServerMode.SIMULATION and not self._sessions.factory.is_shared
        told = [*SUPPORTS, "fork"] if can_fork else list(SUPPORTS)
        told += ["together"] if session.steps_together else []
        return [*told, "isolation"] if self._sessions.is_isolated else told

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

    def _answered(self, message: Message, task: Outcome) -> None:
        error = Cancelled("the request was taken back") if task.cancelled() else task.exception()
        if error is None:
            self._answer(message, task.result())
        else:
            assert isinstance(error, EnvTorchError), error
            self._answer(message, error_reply(error, self._format))

    def _answer(self, message: Message, reply: Reply) -> None:
        self._send(Message.of(reply, id=message.id, ch=message.ch))

    def _send(self, message: Message) -> None:
        """Replies that come together travel together, as one frame; a single session's come one by one."""
        self._outbox.append(message)
        if self._will_flush:
            return
        if len(self._channels) + len(self._far.held) < 2:
            self._flush()
            return
        self._will_flush = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        outbox, self._outbox = self._outbox, []
        if outbox:
            self._line.send(write_frame(outbox, self._format), binary=self._format.is_binary)

    def _say_draining(self) -> None:
        self._send(Message("draining"))

    # Losing the socket.

    def lost(self, session: Session) -> None:
        """Another socket has taken a session over."""
        self._channels = {ch: held for ch, held in self._channels.items() if held is not session}
        self._lineups.forget()
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


def _size(message: Message) -> int:
    """How many bytes of a request wait with it."""
    return memoryview(message.data).nbytes
