"""The one readiness loop, by hand: no server, no clock, no waiting."""

import pytest

from envtorch.errors import NotReady, ServerExited
from envtorch.providers.provider_base import Phase, Status
from envtorch.providers.ready import NO_ANSWER, wait_until_healthy
from tests.support import PATIENCE_S


class Watched:
    """A server that lives for as many looks as it is told."""

    def __init__(self, *phases: Phase) -> None:
        self._phases = list(phases)

    def status(self) -> Status:
        phase = self._phases.pop(0) if len(self._phases) > 1 else self._phases[0]
        return Status(phase, detail="as told", exit_code=9 if phase is Phase.EXITED else None)

    def logs(self, tail: int) -> str:
        return "first line\nlast line"


class Clock:
    """Time passes only when somebody pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_it_returns_at_the_first_healthy_answer() -> None:
    clock, answers = Clock(), ["refused", "503", None]
    wait_until_healthy(
        "http://x",
        timeout_s=PATIENCE_S,
        watched=Watched(Phase.STARTING, Phase.RUNNING),
        ask=lambda url, left: answers.pop(0),
        clock=clock,
        pause=clock.pause,
    )
    assert answers == []
    assert len(clock.pauses) == 2


def test_an_end_is_told_at_once_with_code_and_log() -> None:
    clock = Clock()
    with pytest.raises(ServerExited) as caught:
        wait_until_healthy(
            "http://x",
            timeout_s=600,
            watched=Watched(Phase.RUNNING, Phase.EXITED),
            ask=lambda url, left: "refused",
            clock=clock,
            pause=clock.pause,
        )
    assert len(clock.pauses) == 1
    assert caught.value.details["exit_code"] == 9
    assert str(caught.value) == (
        "the server ended with code 9 before it was healthy (as told)\n"
        "  the last lines it wrote:\n    first line\n    last line"
    )


def test_the_deadline_is_kept_exactly_and_the_last_reason_told() -> None:
    clock = Clock()
    with pytest.raises(NotReady) as caught:
        wait_until_healthy(
            "http://x",
            timeout_s=2.0,
            watched=Watched(Phase.RUNNING),
            ask=lambda url, left: "/health answered 503: no model",
            clock=clock,
            pause=clock.pause,
        )
    assert clock.now == pytest.approx(2.0)
    assert max(clock.pauses) <= 0.25
    assert "within 2 s: as told; /health answered 503: no model" in caught.value.message
    assert isinstance(caught.value, TimeoutError)


def test_a_question_never_gets_more_time_than_is_left() -> None:
    clock, given = Clock(), []

    def slow(url: str, left: float) -> str:
        given.append(left)
        clock.now += left
        return "it did not answer in time"

    with pytest.raises(NotReady):
        wait_until_healthy(
            "http://x",
            timeout_s=3.0,
            watched=Watched(Phase.RUNNING),
            ask=slow,
            clock=clock,
            pause=clock.pause,
        )
    assert given == [3.0]


def test_an_attempt_that_the_deadline_cut_short_does_not_hide_the_reason() -> None:
    clock = Clock()

    def ask(url: str, left: float) -> str:
        if clock.now < 1.0:
            clock.now = 1.0
            return "/health answered 503: no model"
        clock.now += left  # this one waits until the time is up
        return NO_ANSWER

    with pytest.raises(NotReady, match="/health answered 503"):
        wait_until_healthy(
            "http://x", timeout_s=2.0, watched=Watched(Phase.RUNNING), ask=ask, clock=clock, pause=clock.pause
        )
