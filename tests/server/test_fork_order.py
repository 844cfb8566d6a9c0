"""A fork has its turn among the calls of its session: the copies are of what was sent before it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envtorch import ConcurrencyConfig
from envtorch.protocol.calls import Call
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.recording import Recording, find_recordings
from envtorch.server import create_app
from envtorch.server.app import HTTPEnvServer
from tests.server.environments import Order, Report
from tests.server.test_extended import Wire, extended
from tests.server.test_fork import Make, serving
from tests.server.walkers import WALKERS, AsyncCloner, AsyncWalker, QuickWalker, Walker
from tests.support import PATIENCE_S, Running, eventually, running

LAST_STEP = 3


class PatientWalker(QuickWalker):
    """Its `fork()` copies at once, and returns the copy when its test opens the gate."""

    gate = threading.Event()
    entered = threading.Event()

    def step(self, action: Order) -> Report:
        report = self.walk(action)
        report.done = self.state.step_count >= LAST_STEP
        return report

    async def fork(self) -> "PatientWalker":
        made = PatientWalker()
        made._state = self._state.model_copy(deep=True)
        self.entered.set()
        await asyncio.to_thread(self.gate.wait, PATIENCE_S)
        return made


@contextmanager
def serving_patiently(directory: Path) -> Iterator[Running]:
    PatientWalker.gate.clear()
    PatientWalker.entered.clear()
    config = ConcurrencyConfig(max_concurrent_envs=8, reconnect_grace=PATIENCE_S)
    app = create_app(PatientWalker, Order, Report, concurrency_config=config, record=directory)
    with running(app) as server:
        try:
            yield server
        finally:
            PatientWalker.gate.set()


def begin(wire: Wire) -> None:
    wire.open()
    wire.ask(type="reset", id=1, data={"seed": 1})
    wire.ask(**wire.step(2, "before"))


def fork(id: int, n: int = 1) -> dict[str, Any]:
    return {"type": "fork", "id": id, "data": {"n": n}}


def test_a_copy_is_known_and_recorded_as_of_the_step_at_which_it_was_made(tmp_path: Path) -> None:
    with serving_patiently(tmp_path) as server, extended(server) as wire:
        begin(wire)
        wire.say(fork(3))
        assert PatientWalker.entered.wait(PATIENCE_S)
        wire.say(*(wire.step(id, "after") for id in (4, 5)))
        eventually(lambda: server.sessions.meter.running == 3, "the steps wait for the fork")
        PatientWalker.gate.set()
        answers = wire.hear_all({3, 4, 5})
        assert answers[5]["data"]["done"]
        copy = server.sessions.by_token(answers[3]["data"]["sessions"][0]["token"])
        assert copy is not None
        assert (copy.steps, copy.is_over) == (1, False)
    (path,) = find_recordings(tmp_path)
    recording = Recording.open(path)
    parent, forked = recording.episodes
    assert (forked.parent, forked.parent_step) == (parent.number, 1)
    assert [moment.step for moment in recording.moments(forked)] == [0, 1]


@pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
@pytest.mark.parametrize("source", WALKERS)
def test_a_step_sent_after_a_fork_is_not_in_the_copies(source: Make, format: Format) -> None:
    with serving(source) as server, extended(server, format) as wire:
        begin(wire)
        wire.say(fork(3, n=2), wire.step(4, "after"))
        answers = wire.hear_all({3, 4})
        for channel, made in enumerate(answers[3]["data"]["sessions"], start=1):
            wire.ask(type="attach", id=4 + channel, ch=channel, data={"token": made["token"]})
            state = wire.ask(type="state", id=10, ch=channel)["data"]
            assert [event.split()[0] for event in state["events"]] == ["before"]
        assert wire.ask(type="state", id=11)["data"]["step_count"] == 2


@pytest.mark.parametrize("source", [Walker, QuickWalker, AsyncWalker])
def test_what_is_sent_after_a_fork_without_room_is_done(source: Make) -> None:
    with serving(source, room=2) as server, extended(server) as wire:
        begin(wire)
        wire.say(fork(3, n=2), wire.step(4, "after"), fork(5, n=3), wire.step(6, "after"))
        answers = wire.hear_all({3, 4, 5, 6})
        assert [answers[id]["data"]["code"] for id in (3, 5)] == ["CAPACITY_REACHED"] * 2
        assert answers[6]["type"] == "observation"
        assert server.sessions.slots.taken == 1
        assert server.sessions.meter.running == 0


def test_what_is_sent_after_a_fork_that_is_taken_back_is_done(tmp_path: Path) -> None:
    with serving_patiently(tmp_path) as server, extended(server) as wire:
        begin(wire)
        wire.say(fork(3), {"type": "cancel", "id": 4, "data": {"id": 3}}, wire.step(5, "after"))
        assert wire.hear_all({3, 4})[3]["data"]["code"] == "CANCELLED"
        PatientWalker.gate.set()
        assert wire.hear_all({5})[5]["type"] == "observation"
        eventually(lambda: server.sessions.slots.taken == 1, "the copy has no slot")
        assert server.sessions.active == 1
        assert server.sessions.meter.running == 0


def test_a_fork_that_is_taken_back_at_once_keeps_no_turn() -> None:
    async def main() -> None:
        sessions = HTTPEnvServer(AsyncCloner, Order, Report, max_concurrent_envs=4).sessions
        session = await sessions.open(held=False)
        await session.call(Call.reset())
        session.once(1, 1, None, lambda: sessions.fork(session, 2))
        assert session.cancel(1)
        await session.call(Call.step(b'{"do": "after"}'))
        assert (session.steps, sessions.slots.taken, sessions.meter.running) == (1, 1, 0)
        await sessions.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
