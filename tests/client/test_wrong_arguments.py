"""Arguments of the wrong kind: one error of ours with a sentence, nothing sent, and the session goes on."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest

from envtorch import AsyncEnvPool, EnvClient, EnvPool, HTTPEnvClient, MCPToolClient
from envtorch.errors import ConfigurationError, EnvTorchError, InvalidAction
from envtorch.server import create_app
from tests.server.environments import Count, Obedient, Order, Report
from tests.support import Running, running


class Client(EnvClient[Order, Report, Count]): ...


class Http(HTTPEnvClient[Order, Report, Count]): ...


NO_TIMEOUTS: list[Any] = [0, 0.0, -1, math.nan, math.inf, -math.inf, "5", True, [1], 1e300, 10**400]
NO_COUNTS: list[Any] = ["3", 0, -1, True, 2.5, None, [2], math.nan]
NO_ACTIONS: list[Any] = [None, "hello", 5, b"x", [], ["a"], True, math.nan]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Obedient, max_concurrent_envs=32)) as running_server:
        yield running_server


def steps(env: Any) -> int:
    """How many steps the session has seen."""
    count: int = env.state().step_count
    return count


def refused(call: Callable[[], Any], said: str, kind: type[EnvTorchError] = InvalidAction) -> None:
    with pytest.raises(kind, match=said):
        call()


def everywhere(stack: ExitStack, server: Running) -> dict[str, Any]:
    """A client for each way to an environment."""
    return {
        "json": stack.enter_context(Client(server.url)),
        "msgpack": stack.enter_context(Client(server.url, wire="msgpack")),
        "openenv": stack.enter_context(Client(server.url, wire="openenv")),
        "http": stack.enter_context(Http(server.url)),
        "local": stack.enter_context(Client.local(Obedient)),
    }


def test_a_timeout_that_is_no_positive_number_is_refused_and_the_session_goes_on(server: Running) -> None:
    with ExitStack() as stack:
        for env in everywhere(stack, server).values():
            env.reset()
            for wrong in NO_TIMEOUTS:
                refused(partial(env.step, Order(do="x"), timeout_s=wrong), "timeout_s is a number of seconds")
                if not isinstance(env, Http):
                    refused(partial(env.reset, timeout_s=wrong), "timeout_s is")
                    refused(partial(env.state, timeout_s=wrong), "timeout_s is")
                    refused(partial(env.fork, timeout_s=wrong), "timeout_s is")
            assert steps(env) == 0
            assert env.step(Order(do="x"), timeout_s=np.float32(20)).observation.said == "x"


def test_a_wrong_timeout_is_refused_for_tools_before_a_session_is_opened(server: Running) -> None:
    before = server.sessions.active
    env = MCPToolClient(server.url)
    refused(partial(env.list_tools, timeout_s=0), "timeout_s is")
    refused(partial(env.call_tool, "tool", timeout_s=0), "timeout_s is")
    refused(partial(Client(server.url).reset, timeout_s=0), "timeout_s is")
    assert server.sessions.active == before


def test_an_action_that_is_no_object_is_refused_in_a_sentence(server: Running) -> None:
    with ExitStack() as stack:
        for env in everywhere(stack, server).values():
            env.reset()
            for wrong in NO_ACTIONS:
                refused(partial(env.step, wrong), "^an action is Order, or a dictionary of its fields, not ")
            refused(partial(env.step, object()), "cannot be encoded")
            assert steps(env) == 0


def test_a_report_about_the_whole_value_has_no_empty_name_in_it() -> None:
    error = InvalidAction("Invalid message", errors=[{"loc": [], "msg": "Input should be an object"}])
    assert str(error) == "Invalid message (Input should be an object)"


def test_a_number_of_copies_that_is_none_is_refused(server: Running) -> None:
    with Client(server.url) as env, Client.local(Obedient) as local:
        env.reset()
        for wrong in NO_COUNTS:
            refused(partial(env.fork, wrong), "forked into one copy or more, not ")
            refused(partial(local.fork, wrong), "forked into one copy or more, not ")
        int_of_numpy: Any = np.int64(1)
        (copy,) = env.fork(int_of_numpy)
        copy.close()


def test_a_seed_that_no_wire_can_carry_begins_no_unseeded_episode(server: Running) -> None:
    with ExitStack() as stack:
        for env in everywhere(stack, server).values():
            for wrong in (math.nan, math.inf):
                refused(partial(env.reset, seed=wrong), "a seed is a whole number, not ")
        envs: Any = stack.enter_context(Client.vector(server.url, 1))
        refused(partial(envs.reset, seed=math.nan), "a seed is a whole number")
        refused(partial(envs.reset, {0: {"seed": math.nan}}), "a seed is a whole number")


def test_a_number_of_sessions_that_is_none_is_refused(server: Running) -> None:
    before = server.sessions.active
    for wrong in (*NO_COUNTS, 16_385, 10**400):
        refused(partial(Client.vector, server.url, wrong), "a vector has ", ConfigurationError)
        refused(partial(Client.aio.vector, server.url, wrong), "a vector has ", ConfigurationError)
    assert server.sessions.active == before


def wrong_calls(envs: Any) -> dict[str, Callable[[], Any]]:
    """Calls of a vector of two, each with one wrong argument."""
    two: list[Any] = [Order(), Order()]
    calls: dict[str, Callable[[], Any]] = {}
    for wrong in NO_TIMEOUTS:
        calls |= {
            f"step within {wrong!r:.9}": partial(envs.step, two, timeout_s=wrong),
            f"reset within {wrong!r:.9}": partial(envs.reset, timeout_s=wrong),
            f"reset one within {wrong!r:.9}": partial(envs.reset, {0: {}}, timeout_s=wrong),
            f"state within {wrong!r:.9}": partial(envs.state, timeout_s=wrong),
            f"send within {wrong!r:.9}": partial(envs.send, {0: Order()}, timeout_s=wrong),
            f"fork within {wrong!r:.9}": partial(envs.fork, 0, timeout_s=wrong),
        }
    for odd in (None, "hello", 5, b"x", True, math.nan, object(), Order()):
        calls |= {
            f"step {odd!r:.9}": partial(envs.step, odd),
            f"send {odd!r:.9}": partial(envs.send, odd),
            f"end {odd!r:.9}": partial(envs.end, odd),
            f"end of {odd!r:.9}": partial(envs.end, [odd]),
            f"fork of {odd!r:.9}": partial(envs.fork, odd),
            f"reset of one with {odd!r:.9}": partial(envs.reset, {0: odd}),
        }
    for none in NO_COUNTS:
        calls[f"copies {none!r:.9}"] = partial(envs.fork, 0, none)
    calls |= {
        "send to a text": partial(envs.send, {"0": Order()}),
        "send to True": partial(envs.send, {True: Order()}),
        "end of a list": partial(envs.end, [[]]),
        "reset by a text": partial(envs.reset, {"0": {}}),
        "reset by a list": partial(envs.reset, [0]),
        "seeds by a mapping": partial(envs.reset, seed={0: 1, 1: 2}),
        "receive a text": partial(envs.receive, "1"),
    }
    return calls


def test_a_vector_refuses_wrong_arguments_and_goes_on(server: Running) -> None:
    with Client.vector(server.url, 2) as envs:
        envs.reset()
        for name, call in wrong_calls(envs).items():
            try:
                call()
            except InvalidAction as error:
                assert error.message, name
            else:
                pytest.fail(f"{name} was taken")
        assert [state.step_count for state in envs.state()] == [0, 0]
        assert envs.step([Order(do="x")] * 2, timeout_s=20).rewards == [1.0, 1.0]


def test_the_async_twins_refuse_the_same(server: Running) -> None:
    async def try_all() -> None:
        async with (
            Client.aio(server.url) as env,
            Client.aio.vector(server.url, 2) as envs,
            Client.aio.local(Obedient) as local,
        ):
            for one in (env, local):
                await one.reset()
                for wrong in NO_TIMEOUTS:
                    with pytest.raises(InvalidAction, match="timeout_s is"):
                        await one.step(Order(), timeout_s=wrong)
                for wrong in NO_COUNTS:
                    with pytest.raises(InvalidAction, match="forked into one copy or more"):
                        await one.fork(wrong)
                for wrong in NO_ACTIONS:
                    with pytest.raises(InvalidAction, match="an action is Order"):
                        await one.step(wrong)
                assert (await one.step(Order(do="x"), timeout_s=20)).observation.said == "x"
            await envs.reset()
            for wrong in NO_TIMEOUTS:
                with pytest.raises(InvalidAction, match="timeout_s is"):
                    await envs.step([Order(), Order()], timeout_s=wrong)
            with pytest.raises(InvalidAction, match="takes a list of actions"):
                await envs.step(5)  # type: ignore[arg-type]
            assert (await envs.step([Order(do="x")] * 2)).rewards == [1.0, 1.0]

    asyncio.run(try_all())


WRONG_OPTIONS: list[tuple[str, Any]] = [
    *(("connect_timeout_s", wrong) for wrong in NO_TIMEOUTS),
    *(("message_timeout_s", wrong) for wrong in NO_TIMEOUTS),
    *(("heartbeat_s", wrong) for wrong in NO_TIMEOUTS),
    *(
        (name, wrong)
        for name in ("wait_s", "reconnect_s", "recover_s")
        for wrong in (-1, math.nan, "5", True)
    ),
    *(("max_message_size_mb", wrong) for wrong in (0, -1, "5", math.nan)),
    ("token", 5),
    ("token", b"secret"),
    ("headers", "name: value"),
    ("headers", {"name": 5}),
    ("headers", {"name\n": "value"}),
    ("headers", {"": "value"}),
    ("headers", {"name": "value\r\nOther: 1"}),
    ("headers", {"name": "é"}),
    ("elsewhere", "http://127.0.0.1:1"),
    ("elsewhere", 5),
    ("elsewhere", [5]),
    ("provider", "docker"),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG_OPTIONS, ids=lambda value: repr(value)[:20])
def test_an_option_of_the_wrong_kind_is_refused_when_the_client_is_made(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=name.removesuffix("s")):
        Client("http://127.0.0.1:1", **{name: wrong})
    with pytest.raises(ConfigurationError, match=name.removesuffix("s")):
        Client.aio("http://127.0.0.1:1", **{name: wrong})


def test_the_value_of_a_refused_header_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="the value of 'X-Key' has characters") as refusal:
        Client("http://127.0.0.1:1", headers={"X-Key": "secret\n"})
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("wrong", [None, 5, "Client"])
def test_a_pool_refuses_what_makes_no_client(wrong: Any) -> None:
    for pool in (EnvPool, AsyncEnvPool):
        with pytest.raises(ConfigurationError, match="a pool makes its clients with a client class"):
            pool(wrong, "process")


@pytest.mark.parametrize("wrong", [None, 5, b"http://127.0.0.1:1", ["http://127.0.0.1:1"]])
def test_an_address_that_is_no_text_is_refused(wrong: Any) -> None:
    for kind in (Client, Client.aio, Http):
        with pytest.raises(ConfigurationError, match="base_url is the server's address"):
            kind(wrong)


def test_the_http_client_refuses_wrong_arguments(server: Running) -> None:
    for wrong in NO_TIMEOUTS:
        refused(partial(Http, server.url, wrong), "request_timeout_s is", ConfigurationError)
    http: Any
    with Http(server.url) as http:
        http.reset()
        refused(partial(http.step, Order(), request_id=5), "request_id is a text")
        refused(partial(http.step, Order(), headers={"name": 5}), "headers are", ConfigurationError)
        assert steps(http) == 0


@pytest.mark.parametrize("wrong", [5, b"x", [], {}, Order], ids=repr)
def test_local_refuses_what_is_no_environment(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes an environment: a class"):
        Client.local(wrong)


def test_tools_are_called_by_a_name_with_a_dictionary(server: Running) -> None:
    env: Any
    with MCPToolClient(server.url) as env:
        refused(partial(env.call_tool, 5), "a tool is called by its name")
        refused(partial(env.call_tool, "tool", "x"), "arguments of a tool are")
        refused(partial(env.step, "hello"), "an action is Action")
