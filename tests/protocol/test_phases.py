"""The session's state machine: the table by hand, and every walk through it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from envtorch.errors import SessionLost
from envtorch.protocol.phases import Event, SessionPhase, advance


def test_a_life() -> None:
    phase = SessionPhase.STARTING
    seen = []
    for event in (Event.OPENED, Event.CALLED, Event.DETACHED, Event.ANSWERED, Event.ATTACHED, Event.CLOSED):
        phase = advance(phase, event)
        seen.append(phase)
    assert seen == [
        SessionPhase.READY,
        SessionPhase.BUSY,
        SessionPhase.ADRIFT,
        SessionPhase.DETACHED,
        SessionPhase.READY,
        SessionPhase.CLOSED,
    ]


@pytest.mark.parametrize("event", list(Event))
def test_nothing_follows_closed(event: Event) -> None:
    with pytest.raises(SessionLost, match="closed"):
        advance(SessionPhase.CLOSED, event)


@given(st.sampled_from(SessionPhase), st.sampled_from(Event))
def test_every_pair_has_an_answer(phase: SessionPhase, event: Event) -> None:
    try:
        assert isinstance(advance(phase, event), SessionPhase)
    except SessionLost as error:
        assert phase.value in error.message
        assert event.value in error.message


class Life(RuleBasedStateMachine):
    """A session beside the facts it stands for: is a call running, does somebody hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = advance(SessionPhase.STARTING, Event.OPENED)
        self.running, self.held, self.closed = False, True, False

    @precondition(lambda self: self.closed)
    @rule()
    def begin_again(self) -> None:
        with pytest.raises(SessionLost):
            advance(self.phase, Event.CALLED)
        self.__init__()  # type: ignore[misc]

    @precondition(lambda self: not self.closed)
    @rule(event=st.sampled_from([Event.CALLED, Event.ANSWERED, Event.DETACHED, Event.ATTACHED, Event.CLOSED]))
    def happen(self, event: Event) -> None:
        possible = {
            Event.CALLED: not self.running,
            Event.ANSWERED: self.running,
            Event.DETACHED: self.held,
            Event.ATTACHED: not self.held,
            Event.CLOSED: True,
        }[event]
        if not possible:
            with pytest.raises(SessionLost):
                advance(self.phase, event)
            return
        self.phase = advance(self.phase, event)
        self.running = {Event.CALLED: True, Event.ANSWERED: False}.get(event, self.running)
        self.held = {Event.ATTACHED: True, Event.DETACHED: False}.get(event, self.held)
        self.closed = event is Event.CLOSED

    @invariant()
    def the_phase_says_what_is_so(self) -> None:
        facts = {
            (True, True): SessionPhase.BUSY,
            (True, False): SessionPhase.ADRIFT,
            (False, True): SessionPhase.READY,
        }
        expected = facts.get((self.running, self.held), SessionPhase.DETACHED)
        assert self.phase is (SessionPhase.CLOSED if self.closed else expected)


TestLife = Life.TestCase
