"""What a client costs the server that sends many requests with large answers and reads none of them.

The memory is measured in answers: that of all processes of the server, above what they had before, divided by
the size of one answer.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from envtorch import ConcurrencyConfig
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.server import create_app
from tests.server.test_extended import Wire
from tests.server.workers.app import Teller
from tests.server.workers.support import WorkersServer, step, workers_server
from tests.support import PATIENCE_S, eventually, running

ANSWER = 4_000_000
COUNT = 100
MOST = 30
"""How many answers the server may have in memory at a time: unsent, kept for a repeat, and under way between
two workers."""

every_format = pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)


@contextmanager
def unread(url: str, format: Format | None) -> Iterator[ClientConnection]:
    """A socket that takes an answer or two from the network, and no more while nobody asks for them."""
    offered = None if format is None else [Subprotocol("envtorch.v1" + "+msgpack" * format.is_binary)]
    address = url.replace("http://", "ws://") + "/ws"
    with connect(
        address, subprotocols=offered, max_size=None, max_queue=1, ping_interval=None, close_timeout=1
    ) as raw:
        yield raw


class Memory:
    """The memory of a server, in answers."""

    def __init__(self, server: WorkersServer) -> None:
        self._server = server
        self._before = self._resident()

    def _resident(self) -> int:
        return sum(_resident(process) for process in self._server.processes())

    def most(self) -> float:
        """The most that it has until it grows no more for a while."""
        most, since = self._resident(), time.monotonic()
        while time.monotonic() - since < 2.0:
            time.sleep(0.02)
            now = self._resident()
            if now > most + ANSWER / 10:
                most, since = now, time.monotonic()
        return (most - self._before) / ANSWER


def _resident(process: int) -> int:
    with open(f"/proc/{process}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def large_steps(count: int = COUNT, **more: Any) -> list[dict[str, Any]]:
    return [{**step(id, size=ANSWER), **more} for id in range(1, count + 1)]


def totals(wire: Wire, count: int) -> dict[int, list[int]]:
    """By channel, the totals that the answers have, in the order of their arrival."""
    found: dict[int, list[int]] = {}
    while sum(map(len, found.values())) < count:
        for message in wire.hear():
            assert message["type"] == "observation", str(message)[:500]
            found.setdefault(message.get("ch", 0), []).append(message["data"]["observation"]["total"])
    return found


@every_format
@pytest.mark.parametrize("is_one_frame", [False, True], ids=["frames", "one frame"])
def test_a_client_that_reads_nothing_holds_a_few_answers_and_gets_all_when_it_reads(
    format: Format, is_one_frame: bool
) -> None:
    with workers_server(workers=1) as server, unread(server.url, format) as raw:
        wire = Wire(raw, format)
        wire.open()
        memory = Memory(server)
        if is_one_frame:
            wire.say(*large_steps())
        else:
            for one in large_steps():
                wire.say(one)
        most = memory.most()
        print(f"{most:.1f} answers in memory")
        assert most < MOST
        assert totals(wire, COUNT) == {0: list(range(1, COUNT + 1))}


@every_format
def test_the_line_of_any_asgi_server_is_bounded_too(format: Format) -> None:
    offered = [Subprotocol("envtorch.v1" + "+msgpack" * format.is_binary)]
    with (
        workers_server(workers=1) as server,
        server.raw(0, subprotocols=offered, max_queue=1) as raw,
    ):
        wire = Wire(raw, format)
        wire.open()
        memory = Memory(server)
        for one in large_steps():
            wire.say(one)
        most = memory.most()
        print(f"{most:.1f} answers in memory")
        assert most < MOST
        assert totals(wire, COUNT) == {0: list(range(1, COUNT + 1))}


@every_format
def test_both_workers_hold_a_few_answers_where_one_passes_on_those_of_the_other(format: Format) -> None:
    with workers_server(workers=2) as server:
        tokens = []
        for worker in range(2):
            with server.wire(worker, format) as wire:
                tokens.append(wire.open()["token"])
        with unread(server.url, format) as raw:
            wire = Wire(raw, format)
            for channel, token in enumerate(tokens):  # one of them is the other worker's
                attached = wire.ask(type="attach", id=1000 + channel, ch=channel, data={"token": token})
                assert attached["type"] == "session"
            memory = Memory(server)
            for channel in range(2):
                for one in large_steps(ch=channel):
                    wire.say(one)
            most = memory.most()
            print(f"{most:.1f} answers in memory")
            assert most < 2 * MOST
            every = list(range(1, COUNT + 1))
            assert totals(wire, 2 * COUNT) == {0: every, 1: every}


@every_format
def test_repeats_of_one_request_are_not_answered_faster_than_they_are_read(format: Format) -> None:
    with workers_server(workers=1) as server, unread(server.url, format) as raw:
        wire = Wire(raw, format)
        wire.open()
        (large,) = large_steps(1)
        wire.ask(**large)
        memory = Memory(server)
        wire.say(*[large] * COUNT)
        most = memory.most()
        print(f"{most:.1f} answers in memory")
        assert most < MOST
        assert totals(wire, COUNT) == {0: [1] * COUNT}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_of_the_base_wire_that_reads_nothing_holds_a_few_answers(workers: int) -> None:
    with workers_server(workers=workers) as server, unread(server.url, None) as raw:
        wire = Wire(raw, JSON)
        memory = Memory(server)
        for one in large_steps():
            wire.say({"type": "step", "data": one["data"]})
        most = memory.most()
        print(f"{most:.1f} answers in memory")
        assert most < MOST
        heard = [wire.hear()[0]["data"]["observation"]["total"] for _ in range(COUNT)]
        assert heard == list(range(1, COUNT + 1))


@every_format
def test_small_answers_may_all_be_read_after_everything_was_sent(format: Format) -> None:
    """With what is asked besides steps: an unknown message, an attach to nothing, and a cancel."""
    with workers_server(workers=1) as server, unread(server.url, format) as raw:
        wire = Wire(raw, format)
        wire.open()
        for id in range(1, 201):
            wire.say(step(id, size=20_000))
        wire.say({"type": "nonsense", "id": 201})
        wire.say({"type": "attach", "id": 202, "ch": 1, "data": {"token": "x" * 20}})
        wire.say({"type": "cancel", "id": 203, "data": {"id": 1}})
        answers = wire.hear_all(set(range(1, 204)))
        assert [answers[id]["data"]["observation"]["total"] for id in range(1, 201)] == list(range(1, 201))
        assert [answers[id]["type"] for id in (201, 202, 203)] == ["error", "error", "cancelled"]
        wire.close()


@every_format
def test_answers_of_different_sizes_that_waited_to_be_sent_arrive_whole(format: Format) -> None:
    sizes = [200_000 + 1_000 * (number % 7) for number in range(100)]
    with workers_server(workers=1) as server, unread(server.url, format) as raw:
        wire = Wire(raw, format)
        wire.open()
        memory = Memory(server)
        for id, size in enumerate(sizes, start=1):
            wire.say(step(id, size=size))
        memory.most()
        answers = wire.hear_all(set(range(1, len(sizes) + 1)))
        found = [len(answers[id]["data"]["observation"]["padding"]) for id in sorted(answers)]
        assert found == sizes


@every_format
def test_a_client_that_never_reads_is_dropped_and_each_of_its_requests_runs_once(
    format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envtorch.server.transport.picows_transport.STALLED_S", 1.0)
    monkeypatch.setattr("envtorch.server.transport.picows_transport.PROGRESS_S", 0.2)
    config = ConcurrencyConfig(max_concurrent_envs=2, reconnect_grace=PATIENCE_S)
    with running(create_app(Teller, concurrency_config=config)) as server:
        with unread(server.url, format) as raw:
            wire = Wire(raw, format)
            token = wire.open()["token"]
            for one in large_steps(20):
                wire.say(one)
            meter = server.sessions.meter
            eventually(lambda: meter.detached == 1, "the peer is dropped, and its session detached")
        with unread(server.url, format) as raw:
            wire = Wire(raw, format)
            wire.ask(type="attach", id=30, data={"token": token})
            for one in large_steps(20):
                wire.say(one)
            answers = wire.hear_all(set(range(1, 21)))
            for id, answer in answers.items():
                assert answer["data"].get("code") == "ANSWER_DROPPED" or (
                    answer["data"]["observation"]["total"] == id
                )
            assert wire.ask(type="state", id=31)["data"]["step_count"] == 20
