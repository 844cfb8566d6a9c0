"""A `steps` request that repeats an id is answered with its reply for the same contents alone, as `step`."""

from collections.abc import Iterator
from typing import Any

import pytest

from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.server import create_app
from tests.server.carts import AwaitedCart, Cart, CartOfRows, CartOnThread
from tests.server.test_extended import Wire, extended
from tests.support import Running, running

every_format = pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)


@pytest.fixture(
    scope="module",
    params=[(Cart, None), (CartOfRows, None), (AwaitedCart, None), (CartOnThread, None), (Cart, "process")],
    ids=["columns", "rows", "async", "thread", "process"],
)
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    environment, isolation = request.param
    app = create_app(environment, max_concurrent_envs=4, isolation=isolation)
    with running(app) as running_server:
        yield running_server


def ways(force: float) -> list[dict[str, Any]]:
    """One step of channel 0, in each way it can be asked for."""
    return [
        {"type": "step", "data": {"force": force}},
        {"type": "steps", "ch": 9, "data": {"ch": [0], "actions": [{"force": force}]}},
        {"type": "steps", "ch": 9, "data": {"ch": [0], "columns": {"force": [force]}}},
    ]


def steps_taken(wire: Wire, id: int) -> int:
    return int(wire.ask(type="state", id=id)["data"]["step_count"])


def position(answer: dict[str, Any]) -> float:
    data = answer["data"]
    return float(data["fields"]["position"][0] if "fields" in data else data["observation"]["position"])


@every_format
def test_the_id_of_a_reset_does_not_answer_a_step(format: Format, server: Running) -> None:
    with extended(server, format) as wire:
        wire.open()
        wire.ask(type="reset", id=1, data={"start": 5.0})
        for asked in ways(1.0):
            refused = wire.ask(**asked, id=1)["data"]
            assert refused["code"] == "PROTOCOL_ERROR"
            assert "different contents" in refused["message"]
        assert steps_taken(wire, 2) == 0
        wire.close()


@every_format
@pytest.mark.parametrize("first", range(3), ids=["step", "actions", "columns"])
def test_the_id_of_another_action_does_not_answer_a_step(first: int, format: Format, server: Running) -> None:
    with extended(server, format) as wire:
        wire.open()
        wire.ask(type="reset", id=1)
        assert position(wire.ask(**ways(1.0)[first], id=2)) == 1.0
        for asked in ways(9.0):
            assert wire.ask(**asked, id=2)["data"]["code"] == "PROTOCOL_ERROR"
        for asked in ways(1.0):
            assert position(wire.ask(**asked, id=2)) == 1.0, "the same step, whichever way it is asked for"
        assert wire.ask(type="reset", id=2)["data"]["code"] == "PROTOCOL_ERROR"
        assert steps_taken(wire, 3) == 1
        wire.close()
