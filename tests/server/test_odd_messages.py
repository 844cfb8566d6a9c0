"""Messages that are well formed and make no sense: each is answered, and its socket goes on."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.server import create_app
from tests.server.environments import Obedient
from tests.server.test_extended import Wire, extended
from tests.support import Running, running

every_format = pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Obedient, max_concurrent_envs=4)) as running_server:
        yield running_server


def assert_goes_on(wire: Wire, id: int) -> None:
    assert wire.ask(type="state", id=id)["type"] == "state"
    wire.close()


@every_format
@pytest.mark.parametrize(
    "named", [{"actions": []}, {"columns": {}}, {}], ids=["actions", "columns", "nothing"]
)
def test_steps_for_no_channel_are_answered(format: Format, named: dict[str, Any], server: Running) -> None:
    with extended(server, format) as wire:
        wire.open()
        refused = wire.ask(type="steps", id=1, ch=9, data={"ch": [], **named})["data"]
        assert refused["code"] == "VALIDATION_ERROR"
        assert_goes_on(wire, 2)


@every_format
@pytest.mark.parametrize("field", ["id", "ch", "ack"])
@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, 2**200])
def test_a_number_that_cannot_be_carried_back_is_refused(
    format: Format, field: str, number: int, server: Running
) -> None:
    if format is MSGPACK and number >= 2**64:
        pytest.skip("MessagePack has no such number")
    with extended(server, format) as wire:
        token = wire.open()["token"]
        message = {"type": "step", "id": 1, "data": {"do": "x"}, field: number}
        if format is JSON:
            wire.socket.send(json.dumps(message))
        else:
            wire.say(message)
        (refused,) = wire.hear()
        assert (refused["type"], refused["data"]["code"]) == ("error", "INVALID_JSON")
        assert "9223372036854775807" in refused["data"]["message"]
        assert wire.ask(type="attach", id=2, data={"token": token})["data"]["last_id"] == 0
        assert_goes_on(wire, 3)


def test_the_largest_id_is_told_by_an_attach() -> None:
    with running(create_app(Obedient)) as server, extended(server, MSGPACK) as wire:
        token = wire.open()["token"]
        assert wire.ask(**wire.step(2**63 - 1, "x"))["type"] == "observation"
        assert wire.ask(type="attach", id=1, data={"token": token})["data"]["last_id"] == 2**63 - 1
        wire.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\xa6method\xa2\xff\xfe",
        b"\x81\xa2\xff\xfe\x01",
        msgspec.msgpack.encode({"method": msgspec.msgpack.Ext(77, b"?")}),
        MSGPACK.write({"method": np.eye(2)}),
        msgspec.msgpack.encode({"method": msgspec.msgpack.Ext(1, b"")}),
    ],
    ids=["text", "key", "extension", "array", "no array"],
)
def test_mcp_data_that_is_no_json_is_refused_alone(data: bytes, server: Running) -> None:
    with extended(server, MSGPACK) as wire:
        wire.open()
        batch = [
            {"type": "mcp", "id": 1, "data": msgspec.Raw(data)},
            {"type": "step", "id": 2, "data": {"do": "x"}},
        ]
        wire.socket.send(msgspec.msgpack.encode(batch))
        answers = wire.hear_all({1, 2})
        assert answers[1]["data"]["code"] == "VALIDATION_ERROR"
        assert answers[2]["type"] == "observation"
        assert_goes_on(wire, 3)
