"""The server's half of the session model: attach, ledger, turn, outcomes."""

from collections.abc import Iterator

from tests.model.session_state import Entry, Fault, Job, Line, Reply, Request, Session, State

__all__ = ["close_line", "server_events"]

END = Reply("end of stream")
TAKEN_OVER = Reply("taken over")


def server_events(state: State, faults: frozenset[Fault]) -> Iterator[tuple[str, State]]:
    """Everything the servers may do next."""
    for number, line in enumerate(state.lines):
        if line.is_up and line.up:
            request, left = line.up[0], line._replace(up=line.up[1:])
            yield (
                f"server reads {_told(request)}",
                _take(state.with_line(number, left), number, request, faults),
            )
        if line.is_up and not line.is_down:
            yield f"server notices that socket {number} is gone", close_line(state, number)
    for session in state.sessions:
        yield from _work(state, session, faults)
        yield from _drop(state, session, faults)
        if state.chances.expiries and _is_idle(state, session):
            gone = state._replace(sessions=tuple(s for s in state.sessions if s is not session))
            yield f"the grace of session {session.token} ends", gone.spend("expiries")
    if state.chances.deaths and not state.is_dead:
        yield "server 0 dies", _die(state)


def close_line(state: State, number: int, why: Reply = END) -> State:
    """The server's end of a socket is gone: what was not read is lost, what was sent may still arrive."""
    line = state.lines[number]
    down = (*line.down, why) if line.is_down and line.is_up else line.down
    return state.with_line(number, Line(line.server, (), down, is_up=False, is_down=line.is_down))


def _is_idle(state: State, session: Session) -> bool:
    held = any(line.token == session.token for line in state.lines)
    return not held and session.running is None and not session.waiting


def _die(state: State) -> State:
    for number, line in enumerate(state.lines):
        if line.server == 0 and line.is_up:
            state = close_line(state, number)
    left = tuple(session for session in state.sessions if session.server != 0)
    return state._replace(sessions=left, is_dead=True).spend("deaths")


# Reading a request.


def _take(state: State, number: int, request: Request, faults: frozenset[Fault]) -> State:
    if request.kind in ("open", "attach"):
        return _attach(state, number, request)
    session = state.session(state.lines[number].token)
    if session is None or not session.is_usable:
        return _tell(state, (number,), Reply("lost", request.id))
    session = _forget(session, request.ack)
    if request.kind == "cancel":
        return _cancel(state, session, request.id)
    known = next((entry for entry in session.ledger if entry.id == request.id), None)
    if known is None:
        if request.id <= session.newest:
            return _tell(state.with_session(session), (number,), Reply("refused", request.id))
        return state.with_session(_note(session, Job(request, (number,)), faults))
    if known.digest != request.digest and Fault.NO_DIGEST not in faults:
        return _tell(state.with_session(session), (number,), Reply("refused", request.id))
    if known.outcome is not None:
        return _tell(state.with_session(session), (number,), known.outcome)
    return state.with_session(_wait_too(session, request.id, number))


def _attach(state: State, number: int, request: Request) -> State:
    token, line = request.body, state.lines[number]
    session = state.session(token)
    if session is None and request.kind == "open":
        session = Session(token, line.server)
    if session is None or not session.is_usable:
        return _tell(state, (number,), Reply("lost"))
    for other, holder in enumerate(state.lines):
        if holder.token == token and other != number:
            state = close_line(state, other, TAKEN_OVER)
    state = state.with_session(session).with_line(number, line._replace(token=token))
    return _tell(state, (number,), Reply("session", last_id=session.newest))


def _forget(session: Session, ack: int) -> Session:
    """Replies that nobody waits for need not be kept; that their ids were taken is known for ever."""
    kept = tuple(entry for entry in session.ledger if entry.id > ack or entry.outcome is None)
    return session._replace(ledger=kept)


def _note(session: Session, job: Job, faults: frozenset[Fault]) -> Session:
    session = session._replace(waiting=(*session.waiting, job))
    if Fault.NO_NOTE in faults:
        return session
    entry = Entry(job.request.id, job.request.digest)
    return session._replace(ledger=(*session.ledger, entry), newest=job.request.id)


def _wait_too(session: Session, id: int, number: int) -> Session:
    """A repeat of a request that has no outcome yet is answered together with it."""

    def told(job: Job) -> Job:
        return job._replace(lines=(*job.lines, number)) if job.request.id == id else job

    running = told(session.running) if session.running is not None else None
    return session._replace(waiting=tuple(map(told, session.waiting)), running=running)


# Running it.


def _work(state: State, session: Session, faults: frozenset[Fault]) -> Iterator[tuple[str, State]]:
    """What may become of the requests a session has taken."""
    running = session.running
    if running is None and session.waiting and session.is_usable:
        started = session._replace(running=session.waiting[0], waiting=session.waiting[1:])
        yield f"{_told(started.running)} starts on {session.token}", state.with_session(started)
    if running is not None and not running.has_run:
        yield f"{_told(running)} runs on {session.token}", _run(state, session, running)
        if state.chances.failures and running.request.kind == "step":
            failed = _run(state, session, running._replace(failed=True)).spend("failures")
            yield f"{_told(running)} runs on {session.token}, and raises", failed
    if running is not None and running.has_run:
        yield f"{_told(running)} is answered", _finish(state, session, running, faults)
    if state.chances.deadlines:
        for job in (*session.waiting, *((running,) if running is not None else ())):
            for can_stop in (True, False):
                late = _stop(state, session, job, "timed out", can_stop=can_stop).spend("deadlines")
                how = "" if can_stop or job is not running else ", and cannot be stopped"
                yield f"the deadline of {_told(job)} passes{how}", late


def _run(state: State, session: Session, job: Job) -> State:
    """The environment acts. A fork makes a session of its own, with an empty ledger."""
    if job.request.kind == "fork":
        copies = sum(other.token.startswith("copy") for other in state.sessions)
        state = state.with_session(Session(f"copy{copies + 1}", session.server, session.history))
    else:
        session = session._replace(history=(*session.history, job.request.body))
    return state.with_session(session._replace(running=job._replace(has_run=True)))


def _finish(state: State, session: Session, job: Job, faults: frozenset[Fault]) -> State:
    if job.failed and Fault.NO_NOTE in faults:  # what is not an outcome ends the socket
        state = state.with_session(session._replace(running=None))
        for number in job.lines:
            state = close_line(state, number)
        return state
    return _settle(
        state, session, job, Reply("failed" if job.failed else "done", job.request.id, session.history)
    )


def _settle(state: State, session: Session, job: Job, outcome: Reply) -> State:
    """A request's outcome, once: stored, then sent to the sockets that wait for it."""
    others = tuple(entry for entry in session.ledger if entry.id != job.request.id)
    entry = Entry(job.request.id, job.request.digest, outcome)
    waiting = tuple(other for other in session.waiting if other is not job)
    running = None if session.running is job else session.running
    newest = max(session.newest, job.request.id)
    session = session._replace(ledger=(*others, entry), waiting=waiting, running=running, newest=newest)
    return _tell(state.with_session(session), job.lines, outcome)


def _drop(state: State, session: Session, faults: frozenset[Fault]) -> Iterator[tuple[str, State]]:
    """The ledger has no room for an answer. Its id and digest stay, and so does the newest answer."""
    answered = [entry for entry in session.ledger if entry.outcome is not None]
    if not state.chances.drops:
        return
    for entry in answered if Fault.NEWEST_DROPPED in faults else answered[:-1]:
        dropped = entry._replace(outcome=Reply("dropped", entry.id))
        ledger = tuple(dropped if other is entry else other for other in session.ledger)
        after = state.with_session(session._replace(ledger=ledger)).spend("drops")
        yield f"the answer to request {entry.id} is dropped", after


def _stop(state: State, session: Session, job: Job, kind: str, *, can_stop: bool) -> State:
    """End a request before it is answered. A call that cannot be stopped takes its session with it."""
    is_running = job is session.running
    state = _settle(state, session, job, Reply(kind, job.request.id))
    if can_stop or not is_running:
        return state
    for queued in session.waiting:
        left = state.session(session.token)
        assert left is not None
        state = _settle(state, left, queued, Reply("lost", queued.request.id))
    left = state.session(session.token)
    assert left is not None
    return state.with_session(left._replace(is_usable=False))


def _cancel(state: State, session: Session, id: int) -> State:
    state = state.with_session(session)
    for job in (*session.waiting, *((session.running,) if session.running is not None else ())):
        if job.request.id == id:
            return _stop(state, session, job, "cancelled", can_stop=True)
    return state


def _tell(state: State, lines: tuple[int, ...], reply: Reply) -> State:
    for number in lines:
        line = state.lines[number]
        if line.is_up and line.is_down:
            state = state.with_line(number, line._replace(down=(*line.down, reply)))
    return state


def _told(what: Request | Job | None) -> str:
    assert what is not None
    request = what.request if isinstance(what, Job) else what
    if request.kind in ("open", "attach"):
        return f"{request.kind} {request.body}"
    return f"{request.kind} {request.id}" + (f" ({request.body})" if request.kind == "step" else "")
