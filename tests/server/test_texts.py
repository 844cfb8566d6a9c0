"""Texts that UTF-8 cannot carry, and values that no wire carries: the call's own error, on every wire."""

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from envtorch import Action, EnvClient, Environment, Observation, State, create_app
from envtorch.client.vector_collect import Collector
from envtorch.errors import EnvironmentFailed, ProtocolError
from envtorch.protocol.batch import Columns
from envtorch.protocol.channel import Arrived
from envtorch.protocol.formats import JSON
from tests.support import Running, running

HALF = "\udc80"
"""Half a surrogate pair: a text of Python that UTF-8 has no bytes for."""


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """pytest-xdist cannot carry a log with half a surrogate pair from one process to another."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Text(str):
    """A text of a class that the formats do not know."""


class Number(int):
    """A whole number of a class that the formats do not know."""


class Unshown:
    def __repr__(self) -> str:
        return f"unshown {HALF}"


class Do(Action):
    what: str = ""


class Seen(Observation):
    text: str = ""
    found: Any = None


def failure(what: str) -> Exception | None:
    kinds: dict[str, Exception] = {
        "plain": ValueError(f"{HALF} x"),
        "subclass": EnvironmentFailed(Text("of a subclass")),
        "details": EnvironmentFailed(
            "details", where=[{"place": HALF}], thing=Unshown(), many=10**5000, pairs={(1, 2): 3}
        ),
    }
    return kinds.get(what)


class Threaded(Environment[Do, Seen, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None) -> Seen:
        return Seen()

    def step(self, action: Do) -> Seen:
        error = failure(action.what)
        if error is not None:
            raise error
        if action.what == "text":
            return Seen(text=HALF)
        if action.what == "long":
            return Seen(found={"deep": [0, 10**5000]})
        if action.what == "digits":
            return Seen(found="9" * 20_000)
        if action.what == "reward":
            return Seen.model_construct(
                text=action.what, done=False, reward=Number(3), metadata={}, terminated=None, truncated=None
            )
        return Seen(text=action.what, reward=1.0)

    @property
    def state(self) -> State:
        return State()


class OnLoop(Threaded):
    BLOCKING = False


class TextEnv(EnvClient[Do, Seen, State]): ...


@pytest.fixture(scope="module", params=["threaded", "on the loop", "process"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    isolation: Any = {"isolation": "process"} if request.param == "process" else {}
    kind = OnLoop if request.param == "on the loop" else Threaded
    with running(create_app(kind, sessions=8, **isolation)) as found:
        yield found


@pytest.fixture(params=["json", "msgpack"])
def wire(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize(("what", "said"), [("plain", r"\\udc80 x"), ("subclass", "of a subclass")])
def test_an_error_reaches_its_caller_whatever_text_is_in_it(
    server: Running, wire: Any, what: str, said: str
) -> None:
    with TextEnv(server.url, wire=wire, message_timeout_s=20) as env:
        env.reset()
        with pytest.raises(EnvironmentFailed, match=said):
            env.step(Do(what=what))
        assert env.step(Do(what="on")).observation.text == "on"


def test_an_error_reaches_its_caller_whatever_its_details_are(server: Running, wire: Any) -> None:
    with TextEnv(server.url, wire=wire, message_timeout_s=20) as env:
        env.reset()
        with pytest.raises(EnvironmentFailed, match="details") as failed:
            env.step(Do(what="details"))
        assert failed.value.details["where"] == [{"place": "\\udc80"}]
        assert failed.value.details["thing"] == "unshown \\udc80"
        assert env.step(Do(what="on")).observation.text == "on"


@pytest.mark.parametrize("what", ["plain", "details"])
def test_an_error_with_odd_texts_is_one_sessions_of_a_vector(server: Running, wire: Any, what: str) -> None:
    with TextEnv.vector(server.url, 4, wire=wire, message_timeout_s=20) as envs:
        envs.reset()
        result = envs.step([Do(what="a"), Do(what=what), Do(what="c"), Do(what="d")])
        assert {place: type(error) for place, error in result.errors.items()} == {1: EnvironmentFailed}
        assert [seen and seen.text for seen in result.observations] == ["a", None, "c", "d"]


def test_a_text_in_an_observation_that_cannot_be_sent_is_named(server: Running, wire: Any) -> None:
    with TextEnv(server.url, wire=wire, message_timeout_s=20) as env:
        env.reset()
        with pytest.raises(EnvironmentFailed, match="field 'text' cannot be encoded"):
            env.step(Do(what="text"))
        assert env.step(Do(what="on")).observation.text == "on"


def test_a_whole_number_that_no_client_can_read_is_named(server: Running, wire: Any) -> None:
    with TextEnv(server.url, wire=wire, message_timeout_s=20) as env:
        env.reset()
        with pytest.raises(EnvironmentFailed, match=r"field 'found\.deep\.1' cannot be encoded"):
            env.step(Do(what="long"))
        assert env.step(Do(what="digits")).observation.found == "9" * 20_000


def test_a_whole_number_that_no_client_can_read_is_one_sessions_of_a_vector(
    server: Running, wire: Any
) -> None:
    with TextEnv.vector(server.url, 4, wire=wire, message_timeout_s=20) as envs:
        envs.reset()
        result = envs.step([Do(what="a"), Do(what="long"), Do(what="c"), Do(what="d")])
        assert {place: type(error) for place, error in result.errors.items()} == {1: EnvironmentFailed}
        assert [seen and seen.text for seen in result.observations] == ["a", None, "c", "d"]


def test_a_reply_that_cannot_be_read_is_one_sessions_of_a_vector() -> None:
    rows = b'[{"text":"a"},{"found":1%b},{"text":"c"}]' % (b"0" * 5000)
    collector: Collector[Seen] = Collector(TextEnv.__new__(TextEnv), JSON, 3)
    columns = Columns([0, 1, 2], [1.0, 1.0, 1.0], [False] * 3, observation=msgspec.Raw(rows))
    collector.take(Arrived([0, 1, 2], columns=columns))
    result = collector.result()
    assert [seen and seen.text for seen in result.observations] == ["a", None, "c"]
    assert {place: type(error) for place, error in result.errors.items()} == {1: ProtocolError}


def test_a_reward_of_a_subclass_of_int_is_a_number(server: Running, wire: Any) -> None:
    with TextEnv(server.url, wire=wire, message_timeout_s=20) as env:
        env.reset()
        assert env.step(Do(what="reward")).reward == 3


def test_the_base_wire_carries_an_error_with_any_text(server: Running) -> None:
    with server.socket() as raw:
        raw.send('{"type":"reset","data":{}}')
        raw.recv(60)
        raw.send('{"type":"step","data":{"what":"plain"}}')
        assert r"\\udc80 x" in str(raw.recv(60))
        raw.send('{"type":"step","data":{"what":"on"}}')
        assert '"on"' in str(raw.recv(60))
