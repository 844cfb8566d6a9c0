"""The session protocol as a model: what can happen to a bounded episode, and what must never come of it."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from tests.model.client_rules import client_events
from tests.model.explorer import Explored, explore
from tests.model.server_rules import server_events
from tests.model.session_state import Chances, Client, Fault, State

__all__ = ["EQUAL_CONTENTS", "LARGE_SCENARIOS", "SCENARIOS", "Scenario", "check"]


class Scenario(NamedTuple):
    """An episode, and how often each thing may go wrong in it."""

    plan: tuple[str, ...]
    chances: Chances
    connections: int = 3
    """How many sockets a client opens before it gives its session up for lost."""
    is_hidden: bool = False
    """Nothing of it may be noticed: every step of the parent is acknowledged, and none ends in an error."""
    second: str = "s1"
    """The action that a second holder takes."""


SCENARIOS: Mapping[str, Scenario] = {
    "cuts": Scenario(("p1", "p2"), Chances(cuts=2), connections=5, is_hidden=True),
    "failures": Scenario(("p1", "p2"), Chances(cuts=1, failures=1)),
    "timeouts": Scenario(("p1", "p2"), Chances(cuts=1, deadlines=1, gives_up=1)),
    "cancel": Scenario(("p1", "p2"), Chances(cuts=1, cancels=1, gives_up=1)),
    "fork": Scenario(("p1", "fork", "p2"), Chances(cuts=1), is_hidden=True),
    "os.fork": Scenario(("p1", "p2"), Chances(cuts=1, process_forks=1), is_hidden=True),
    "second holder": Scenario(("p1", "p2"), Chances(cuts=1, takeovers=1), connections=2),
    "dead server": Scenario(("p1", "p2", "p3"), Chances(cuts=1, deaths=1, gives_up=1)),
    "dropped answers": Scenario(
        ("p1", "p2", "p3"), Chances(cuts=1, gives_up=1, drops=1), connections=4, is_hidden=True
    ),
    "expired grace": Scenario(("p1", "p2"), Chances(cuts=1, expiries=1)),
}
"""Each thing that can go wrong, by itself or beside a cut. Small enough for the everyday suite."""

LARGE_SCENARIOS: Mapping[str, Scenario] = {
    "three steps, two cuts": Scenario(("p1", "p2", "p3"), Chances(cuts=2), connections=5, is_hidden=True),
    "two cuts around a fork": Scenario(("p1", "fork", "p2"), Chances(cuts=2), connections=5, is_hidden=True),
    "cuts and a second holder": Scenario(("p1", "p2"), Chances(cuts=2, takeovers=1)),
    "a second holder of a dead server": Scenario(("p1", "p2"), Chances(deaths=1, takeovers=1), connections=2),
    "dropped answers and a second holder": Scenario(("p1", "p2"), Chances(cuts=1, takeovers=1, drops=1)),
    "os.fork and a fork": Scenario(("p1", "fork", "p2"), Chances(cuts=1, process_forks=1), is_hidden=True),
    "deadlines, cancels, a dead server": Scenario(
        ("p1", "p2"), Chances(cuts=1, deadlines=1, cancels=1, gives_up=1, deaths=1)
    ),
    "failures and os.fork, a dead server": Scenario(
        ("p1", "p2"), Chances(cuts=1, failures=1, expiries=1, deaths=1, process_forks=1)
    ),
}
"""Several things at once, for `make test-model`."""


EQUAL_CONTENTS = Scenario(("p1", "p2"), Chances(cuts=1, takeovers=1), connections=2, second="P1")
"""What the protocol does not promise: two holders that send equal contents under one id are one request."""


def check(scenario: Scenario, faults: frozenset[Fault] = frozenset()) -> Explored[State]:
    """Every interleaving of the scenario, with these parts of the protocol left out."""
    parent = Client("parent", "first", scenario.plan, connections=scenario.connections)
    return explore(
        State((parent,), scenario.chances, second=scenario.second),
        partial(_successors, faults),
        partial(_wrong, scenario),
    )


def _successors(faults: frozenset[Fault], state: State) -> Iterator[tuple[str, State]]:
    yield from client_events(state, faults)
    yield from server_events(state, faults)


def _wrong(scenario: Scenario, state: State, is_final: bool) -> str | None:
    """Each acknowledged step once, in order, never another request's answer. And nothing hangs."""
    if state.wrong:
        return state.wrong
    for session in state.sessions:
        for action in session.history:
            if session.history.count(action) > 1:
                return f"{action} ran {session.history.count(action)} times"
    if sum(session.token.startswith("copy") for session in state.sessions) > 1:
        return "one fork made two copies"
    for client in state.clients:
        found = _unkept(scenario, state, client, is_final)
        if found is not None:
            return found
    return None


def _unkept(scenario: Scenario, state: State, client: Client, is_final: bool) -> str | None:
    session = state.session(client.token)
    if session is not None and client.replayed is None and not client.error:
        ran = tuple(action for action in session.history if action in client.acknowledged)
        if ran != client.acknowledged:
            return f"{client.name} was acknowledged {client.acknowledged}, and the session ran {ran}"
    if is_final and not client.error and (client.plan or client.waiting is not None):
        return f"{client.name} waits for ever"
    if is_final and scenario.is_hidden and client.name == "parent" and client.error:
        return f"{client.name} was told {client.error}"
    return None
