"""The session protocol's promise, over every interleaving of a bounded episode."""

import pytest

from tests.model.explorer import explore
from tests.model.session_model import EQUAL_CONTENTS, SCENARIOS, check
from tests.model.session_state import Fault


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_acknowledged_step_runs_once_in_order_and_is_given_its_own_answer(name: str) -> None:
    found = check(SCENARIOS[name])
    assert found.counterexample is None, f"\n{found.counterexample}"
    assert found.states > 300, "the scenario explores nothing"


@pytest.mark.parametrize(
    ("fault", "scenario", "wrong"),
    [
        (Fault.NO_NOTE, "cuts", "p1 ran 2 times"),
        (Fault.NO_NOTE, "failures", "p1 ran 2 times"),
        (Fault.NO_DIGEST, "second holder", "parent asked for p1, and was given the answer to s1"),
        (Fault.NO_PROCESS_CHECK, "os.fork", "child asked for c1, and was given the answer to p1"),
        (Fault.NO_ID_CHECK, "timeouts", "parent asked for p2, and was given the answer to p1"),
        (Fault.NO_STRAY_COUNT, "cuts", "parent was told SessionLost"),
        (Fault.NO_COMPARISON, "dead server", "parent saw"),
        (Fault.NEWEST_DROPPED, "dropped answers", "parent was told AnswerDropped"),
    ],
)
def test_without_this_part_of_the_protocol_the_promise_is_broken(
    fault: Fault, scenario: str, wrong: str
) -> None:
    found = check(SCENARIOS[scenario], frozenset({fault}))
    assert found.counterexample is not None
    print(f"\nWithout it: {fault.value}\n{found.counterexample}")
    assert wrong in found.counterexample.wrong
    assert len(found.counterexample.events) > 5


def test_equal_contents_under_one_id_are_one_request_even_from_two_holders() -> None:
    """The limit that the design page states: a digest cannot tell two clients apart."""
    found = check(EQUAL_CONTENTS)
    assert found.counterexample is not None
    assert "was given the answer to" in found.counterexample.wrong


def test_the_search_finds_the_shortest_way() -> None:
    found = explore(1, lambda n: [("double", 2 * n), ("add one", n + 1)] if n < 100 else [], _is_thirteen)
    assert found.counterexample is not None
    assert found.counterexample.events == ("double", "add one", "double", "double", "add one")


def _is_thirteen(number: int, is_final: bool) -> str | None:
    return "thirteen" if number == 13 else None
