"""Steps of many sessions in one message: channels, repeated ids, broken lines."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from envtorch import create_app
from envtorch.protocol.formats import JSON, MSGPACK, Format
from tests.faults.proxy import Break, Direction, Fault, proxy_to
from tests.server.carts import (
    COUNT,
    AwaitedCart,
    Cart,
    CartEnv,
    CartOfRows,
    Push,
    Wire,
)
from tests.server.test_extended import extended
from tests.support import Running, running


@pytest.fixture(autouse=True)
def no_calls() -> None:
    Cart.calls.clear()


@pytest.fixture(scope="module", params=[Cart, CartOfRows, AwaitedCart])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(create_app(request.param, max_concurrent_envs=4 * COUNT)) as running_server:
        yield running_server


def test_sessions_stay_sessions(server: Running) -> None:
    """One of them is reset, stepped alone and ends; the others go on together."""
    steps: Callable[[int, list[int]], dict[str, Any]] = lambda id, ch: {  # noqa: E731
        "type": "steps",
        "id": id,
        "ch": 9,
        "data": {"ch": ch, "columns": {"force": [1.0] * len(ch)}},
    }
    with extended(server) as wire:
        supports = [wire.open(ch)["supports"] for ch in range(3)]
        assert all("together" in told for told in supports)
        for id in (1, 2):
            data = wire.ask(**steps(id, [0, 1, 2]))["data"]
        assert data["ch"] == [0, 1, 2]
        wire.ask(type="reset", id=3, ch=1, data={"start": 4.0})
        alone = wire.ask(type="step", id=4, ch=1, data={"force": 1.0})["data"]
        assert (alone["observation"]["position"], alone["reward"]) == (5.0, -5.0)
        states = [wire.ask(type="state", id=5 + ch, ch=ch)["data"]["step_count"] for ch in range(3)]
        assert states == [2, 1, 2]
        copy = wire.ask(type="fork", id=9, ch=2, data={"n": 1})["data"]["sessions"][0]
        wire.ask(type="attach", id=10, ch=7, data={"token": copy["token"]})
        wire.close(1)
        wire.ask(**steps(5001, [0, 2, 7]))
        state = wire.ask(type="state", id=5002, ch=7)["data"]
        assert state["step_count"] == 3
        for ch in (0, 2, 7):
            wire.ask(type="close", id=6000, ch=ch)
    assert Cart.calls[-1] == 3


def test_a_channel_is_named_once_in_a_message(server: Running) -> None:
    with extended(server) as wire:
        wire.open(0)
        wire.ask(type="reset", id=1, ch=0, data={})
        for ch in ([0, 0], list(range(20_000))):
            told = wire.ask(
                type="steps", id=2 + len(ch), ch=9, data={"ch": ch, "columns": {"force": [1.0] * len(ch)}}
            )
            assert (told["type"], told["data"]["code"]) == ("error", "PROTOCOL_ERROR")
        assert wire.ask(type="state", id=50_000, ch=0)["data"]["step_count"] == 0


def test_a_channel_that_changed_hands_leads_to_its_new_session(server: Running) -> None:
    """However often the same channels were asked together before."""
    both = {"ch": [0, 1], "columns": {"force": [1.0, 1.0]}}
    with extended(server) as wire, extended(server) as other:
        wire.open(0)
        first = wire.open(1)
        for id in (1, 2):
            wire.ask(type="steps", id=id, ch=9, data=both)
        other.ask(type="attach", id=3, ch=0, data={"token": first["token"]})
        refused = {one["ch"]: one for one in both_answers(wire, id=3, data=both)}
        assert refused[1]["data"]["code"] == "SESSION_ERROR", "it is no longer here"
        wire.ask(type="session", id=4, ch=1)
        wire.ask(type="steps", id=5, ch=9, data=both)
        steps = [wire.ask(type="state", id=6 + ch, ch=ch)["data"]["step_count"] for ch in (0, 1)]
        assert steps == [4, 1]
        assert other.ask(type="state", id=6, ch=0)["data"]["step_count"] == 2
        for ch in (0, 1):
            wire.close(ch)
        other.close(0)


def both_answers(wire: Any, *, id: int, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of two sessions that are not answered together."""
    wire.say({"type": "steps", "id": id, "ch": 9, "data": data})
    heard: list[dict[str, Any]] = []
    while len(heard) < 2:
        heard += [{"ch": 0} | one for one in wire.hear()]
    return heard


@pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
def test_a_repeated_id_gets_each_sessions_share(server: Running, format: Format) -> None:
    with extended(server, format) as wire:
        tokens = [wire.open(ch)["token"] for ch in range(2)]
        asked = {"ch": [0, 1], "columns": {"force": [1.0, 2.0]}}
        wire.ask(type="steps", id=1, ch=9, data=asked)
        calls = len(Cart.calls)
        first = {ch: wire.ask(type="step", id=1, ch=ch, data={"force": ch + 1.0})["data"] for ch in (0, 1)}
        assert [first[ch]["observation"]["position"] for ch in (0, 1)] == [1.0, 2.0]
        assert first[1]["reward"] == -2.0
        with extended(server, format) as other:  # under other channel numbers, too
            for ch, token in enumerate(reversed(tokens)):
                other.ask(type="attach", id=50, ch=ch, data={"token": token})
            share = other.ask(type="step", id=1, ch=0, data={"force": 2.0})["data"]
            assert share["observation"]["position"] == 2.0
            assert len(Cart.calls) == calls
            again = other.ask(type="step", id=2, ch=0, data={"force": 1.0})["data"]
            alone = again["observation"].keys(), again.keys()
            assert (share["observation"].keys(), share.keys() - {"metadata"}) == (
                alone[0],
                alone[1] - {"metadata"},
            )
            for ch in (0, 1):
                other.close(ch)


def test_a_failure_is_kept_like_any_answer(server: Running) -> None:
    with extended(server) as wire:
        wire.open(0)
        asked = {"ch": [0], "columns": {"force": [1.0], "word": ["fail"]}}
        first = wire.ask(type="steps", id=1, ch=9, data=asked)["data"]
        assert first["code"] == "EXECUTION_ERROR"
        calls = len(Cart.calls)
        assert wire.ask(type="step", id=1, ch=0, data={"force": 1.0, "word": "fail"})["data"] == first
        assert len(Cart.calls) == calls
        wire.close(0)


@pytest.mark.parametrize(
    "data", [{"columns": {"force": [1.0]}}, {"columns": {"force": 1}}, {"columns": [1]}, {}]
)
def test_columns_that_are_none_are_refused_as_a_whole(server: Running, data: dict[str, Any]) -> None:
    with extended(server) as wire:
        for ch in range(2):
            wire.open(ch)
        refused = wire.ask(type="steps", id=1, ch=9, data={"ch": [0, 1], **data})["data"]
        assert refused["code"] == "VALIDATION_ERROR"
        for ch in range(2):
            wire.close(ch)


@pytest.mark.parametrize("actions", [{"force": [1.0] * 4}, [Push(force=1.0)] * 4], ids=["columns", "rows"])
@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_a_broken_line_loses_no_step_and_doubles_none(server: Running, wire: Wire, actions: Any) -> None:
    def play(port: int) -> list[float]:
        with CartEnv.vector(f"http://127.0.0.1:{port}", 4, wire=wire) as envs:
            envs.reset(start=-100.0)
            for _ in range(6):
                result = envs.step(actions)
            return list(result.column("position"))

    async def disturbed(planned: Break | None) -> tuple[list[float], int, dict[Direction, int]]:
        async with proxy_to(int(server.url.rsplit(":", 1)[1]), planned) as proxy:
            return await asyncio.to_thread(play, proxy.port), proxy.faults, dict(proxy.forwarded)

    _, _, lengths = asyncio.run(disturbed(None))
    happened = 0
    for direction, length in lengths.items():
        for at in range(400, length, length // 6):
            positions, faults, _ = asyncio.run(disturbed(Break(Fault.CUT, direction, at)))
            assert positions == [-94.0] * 4
            happened += faults
    assert happened >= 6
