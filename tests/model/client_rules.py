"""The client's half of the session model: ids, reconnecting, giving up, os.fork, replay on another server."""

from collections.abc import Iterator

from tests.model.server_rules import close_line
from tests.model.session_state import Client, Fault, History, Line, Reply, Request, State

__all__ = ["client_events"]


def client_events(state: State, faults: frozenset[Fault]) -> Iterator[tuple[str, State]]:
    """Everything the clients, and the network between, may do next."""
    for client in state.clients:
        if not client.error:
            yield from _act(state, client, faults)
    if state.chances.cuts:
        for number, line in enumerate(state.lines):
            if line.is_down and line.is_up:
                yield f"socket {number} is cut, the client sees it first", _cut(state, number).spend("cuts")
                yield (
                    f"socket {number} is cut, the server sees it first",
                    close_line(state, number).spend("cuts"),
                )


def _cut(state: State, number: int) -> State:
    """What was on its way to the client is lost; what it sent may still arrive, or not."""
    line = state.lines[number]
    state = state.with_line(number, line._replace(down=(), is_down=False))
    for client in state.clients:
        if client.line == number:
            state = state.with_client(_left(client, 1))
    return state


def _left(client: Client, strays: int) -> Client:
    """Without its socket, and with so many more strays."""
    return client._replace(line=None, is_greeted=False, strays=client.strays + strays)


def _act(state: State, client: Client, faults: frozenset[Fault]) -> Iterator[tuple[str, State]]:
    name, chances = client.name, state.chances
    if name == "child" and Fault.NO_PROCESS_CHECK not in faults:
        yield (
            "child steps the client it inherited",
            _ended(state, client, "this client belongs to another process"),
        )
        return
    if client.line is None:
        if client.plan or client.waiting or client.replayed is not None:
            yield from _connect(state, client)
        return
    line = state.lines[client.line]
    if line.down:
        reply = line.down[0]
        rest = state.with_line(client.line, line._replace(down=line.down[1:]))
        yield f"{name} receives {_told(reply)}", _receive(rest, client, reply, faults)
    if client.is_greeted and client.waiting is None and (client.plan or client.replayed is not None):
        sent = _next(client)
        assert sent.waiting is not None
        yield f"{name} sends {_asked(sent.waiting)}", _send(state.with_client(sent), sent, sent.waiting)
    if client.is_greeted and client.waiting is not None and client.replayed is None:
        cancelled = _send(state, client, Request("cancel", client.waiting.id))
        if chances.cancels:
            yield f"{name} cancels request {client.waiting.id}", cancelled.spend("cancels")
        if chances.gives_up:
            moved_on = client._replace(waiting=None)
            yield (
                f"{name} gives request {client.waiting.id} up",
                cancelled.with_client(moved_on).spend("gives_up"),
            )
    if name == "parent" and client.is_greeted:
        if chances.process_forks:
            yield "parent calls os.fork", _fork_process(state, client)
        if chances.takeovers:
            second = Client("second", client.token, (state.second,), is_open=True, connections=2)
            taken = state._replace(clients=(*state.clients, second)).spend("takeovers")
            yield "second is given the session's token", taken


def _fork_process(state: State, parent: Client) -> State:
    """A copy of the client's memory, on the same socket."""
    child = parent._replace(name="child", plan=("c1",), waiting=None, seen=())
    return state._replace(clients=(*state.clients, child)).spend("process_forks")


def _connect(state: State, client: Client) -> Iterator[tuple[str, State]]:
    if not client.connections:
        yield f"{client.name} stops reconnecting", _ended(state, client, "SessionLost")
        return
    if client.server == 0 and state.is_dead:
        yield f"{client.name} is refused a connection", _lost(state, client)
        return
    kind = "attach" if client.is_open else "open"
    line = Line(client.server, (Request(kind, body=client.token),))
    left = client.connections - 1
    connected = client._replace(line=len(state.lines), is_greeted=False, connections=left)
    after = state._replace(lines=(*state.lines, line)).with_client(connected)
    yield f"{client.name} connects socket {connected.line}, and sends {kind} {client.token}", after


def _next(client: Client) -> Client:
    """The client with its next request, under the next id."""
    body, plan = (client.plan[0], client.plan[1:]) if client.plan else ("", ())
    if client.replayed is not None:
        body, plan = client.acknowledged[client.replayed], client.plan
    kind = "fork" if body == "fork" else "step"
    request = Request(kind, client.last_id + 1, body, ack=client.last_id)  # no earlier one is waited for
    return client._replace(plan=plan, last_id=request.id, waiting=request)


def _send(state: State, client: Client, request: Request) -> State:
    assert client.line is not None
    line = state.lines[client.line]
    if not line.is_up:
        return state  # written to a socket that the other side has left
    return state.with_line(client.line, line._replace(up=(*line.up, request)))


def _receive(state: State, client: Client, reply: Reply, faults: frozenset[Fault]) -> State:
    if reply.kind in ("end of stream", "taken over"):
        assert client.line is not None
        state = state.with_line(client.line, state.lines[client.line]._replace(down=(), is_down=False))
        if reply.kind == "end of stream":
            return state.with_client(_left(client, 1))
        if not client.strays or Fault.NO_STRAY_COUNT in faults:
            return _ended(state, client, "SessionLost")  # another client has attached
        return state.with_client(_left(client, -1))  # it may have been a socket of its own
    if reply.kind == "session":
        last_id = client.last_id if client.last_id or client.name != "second" else reply.last_id
        client = client._replace(is_greeted=True, is_open=True, last_id=last_id)
        state = state.with_client(client)
        return _send(state, client, client.waiting) if client.waiting is not None else state
    if reply.kind == "lost" and (
        reply.id == 0 or (client.waiting is not None and reply.id == client.waiting.id)
    ):
        return _lost(state, client)
    if client.waiting is None or (reply.id != client.waiting.id and Fault.NO_ID_CHECK not in faults):
        return state  # the answer to a request that was given up
    if reply.kind == "refused":
        return _ended(state, client, "this id was used for another request")
    if reply.kind == "dropped":
        return _ended(state, client, "AnswerDropped")
    if reply.kind != "done" and client.replayed is not None:
        return _ended(
            state, client, "SessionLost"
        )  # the step may have run: asking for it again would run it twice
    if reply.kind != "done":
        return state.with_client(client._replace(waiting=None))
    return _acknowledge(state, client._replace(waiting=None), client.waiting, reply.history, faults)


def _acknowledge(
    state: State, client: Client, asked: Request, history: History, faults: frozenset[Fault]
) -> State:
    """A request was answered. The promise is checked here, with what the client was told."""
    if asked.kind == "fork":
        if not _in_order(client.acknowledged, history):
            state = state._replace(wrong=f"the copy has {history}, of an episode with {client.acknowledged}")
        copy = Client("copy", "copy1", ("f1",), is_open=True)
        return state.with_client(client)._replace(clients=(*state.with_client(client).clients, copy))
    if not history or history[-1] != asked.body:
        answered = history[-1] if history else "no step at all"
        wrong = f"{client.name} asked for {asked.body}, and was given the answer to {answered}"
        return state.with_client(client)._replace(wrong=wrong)
    if client.replayed is not None:
        return _replayed(state, client, history, faults)
    if client.seen and history[: len(client.seen[-1])] != client.seen[-1]:
        wrong = f"{client.name} saw {client.seen[-1]}, and after {asked.body} {history}"
        return state.with_client(client)._replace(wrong=wrong)
    return state.with_client(client._replace(seen=(*client.seen, history)))


def _in_order(actions: tuple[str, ...], history: History) -> bool:
    return [action for action in history if action in actions] == list(actions)


# A session that is gone.


def _lost(state: State, client: Client) -> State:
    """Replay the episode on server 1 when server 0 has died; else `SessionLost`.

    Only the parent knows all of its episode: a copy and a second holder began in the middle.
    """
    if client.name != "parent" or client.server == 1 or not state.is_dead:
        return _ended(state, client, "SessionLost")
    plan = (client.waiting.body, *client.plan) if client.waiting is not None else client.plan
    replayed = 0 if client.seen else None
    anew = client._replace(
        token="replay",
        server=1,
        is_open=False,
        plan=plan,
        waiting=None,
        replayed=replayed,
        line=None,
        is_greeted=False,
    )
    return state.with_client(anew)


def _replayed(state: State, client: Client, history: History, faults: frozenset[Fault]) -> State:
    """Compare a replayed step's observation with the one that the first server gave."""
    assert client.replayed is not None
    if history != client.seen[client.replayed] and Fault.NO_COMPARISON not in faults:
        return _ended(state, client, "SessionLost")
    count = client.replayed + 1
    return state.with_client(client._replace(replayed=count if count < len(client.seen) else None))


def _ended(state: State, client: Client, error: str) -> State:
    return state.with_client(client._replace(error=error, line=None, is_greeted=False, waiting=None))


def _told(reply: Reply) -> str:
    if reply.kind in ("session", "end of stream", "taken over"):
        return reply.kind
    return f"the answer to request {reply.id}: {reply.kind} {' '.join(reply.history)}".rstrip()


def _asked(request: Request) -> str:
    return f"{request.kind} {request.id}" + (f" ({request.body})" if request.kind == "step" else "")
