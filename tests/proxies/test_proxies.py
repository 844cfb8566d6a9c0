"""Three replicas behind one address: every door finds the replica of its session."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from envtorch.client import HTTPEnvClient
from envtorch.client.blocking.links import SocketLink
from envtorch.envs.echo_env import EchoAction, EchoEnv, EchoObservation, EchoState
from envtorch.errors import SessionLost
from envtorch.protocol.reconnect import Reconnecting
from envtorch.providers import ProcessProvider
from tests.proxies.proxies import Proxy, replica
from tests.recovery.servers import kill
from tests.support import cut, eventually


class Visitors(NamedTuple):
    """How many sessions there are, through each door."""

    sockets: int
    http: int
    mcp: int


@pytest.fixture(
    params=[Visitors(12, 8, 6), pytest.param(Visitors(100, 60, 40), marks=pytest.mark.slow)], ids=sum
)
def visitors(request: pytest.FixtureRequest) -> Visitors:
    found: Visitors = request.param
    return found


class EchoOverHTTP(HTTPEnvClient[EchoAction, EchoObservation, EchoState]): ...


@pytest.fixture(scope="module")
def replicas() -> Iterator[dict[str, ProcessProvider]]:
    with ExitStack() as started:
        yield {name: started.enter_context(replica(name)) for name in ("web-1", "web-2", "web-3")}


@pytest.fixture(params=["nginx", "haproxy"])
def proxy(
    request: pytest.FixtureRequest, replicas: dict[str, ProcessProvider], tmp_path: Path
) -> Iterator[Proxy]:
    with Proxy(request.param, tmp_path) as proxy:
        proxy.configure(replicas)
        yield proxy


def replica_of(env: EchoEnv) -> str:
    link = env._link
    assert isinstance(link, SocketLink)
    assert isinstance(link._session, Reconnecting)
    name = link._session.channels.replica
    assert name is not None
    return name


class McpSession:
    """A session of MCP's streamable HTTP, by hand."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=60.0)
        started = self._post("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=INFO)
        self.id = started.headers["Mcp-Session-Id"]
        self._http.headers["Mcp-Session-Id"] = self.id

    def _post(self, method: str, **params: Any) -> httpx.Response:
        accept = {"Accept": "application/json, text/event-stream"}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self._http.post("/mcp", json=body, headers=accept)

    def step(self, message: str) -> httpx.Response:
        return self._post("tools/call", name="step", arguments={"message": message})

    def close(self) -> None:
        self._http.close()


INFO = {"name": "test", "version": "1"}


def test_every_session_stays_on_its_replica(proxy: Proxy, visitors: Visitors) -> None:
    with ExitStack() as opened:
        sockets = [opened.enter_context(EchoEnv(proxy.url)) for _ in range(visitors.sockets)]
        assert len({replica_of(env) for env in sockets}) == 3, "sessions spread"
        for env in sockets:
            env.reset()
            env.step(EchoAction(message="one"))
            cut(env)
            before = replica_of(env)
            assert env.state().step_count == 1, "attached again, where it was"
            assert replica_of(env) == before
            (copy,) = env.fork()
            assert replica_of(opened.enter_context(copy)) == before
            assert copy.state().step_count == 1
        over_http = [EchoOverHTTP(proxy.url) for _ in range(visitors.http)]
        for client in over_http:
            opened.callback(client.close)
            client.reset()
        for _ in range(3):
            for client in over_http:
                client.step(EchoAction(message="two"))
        assert [client.state().step_count for client in over_http] == [3] * visitors.http
        over_mcp = [McpSession(proxy.url) for _ in range(visitors.mcp)]
        for session in over_mcp:
            opened.callback(session.close)
        assert all(session.id.startswith("web-") for session in over_mcp)
        for _ in range(3):
            for session in over_mcp:
                assert session.step("three").status_code == 200


def test_sessions_of_a_dead_replica_are_lost_and_the_others_go_on(
    proxy: Proxy, replicas: dict[str, ProcessProvider], visitors: Visitors
) -> None:
    with ExitStack() as opened:
        doomed = opened.enter_context(replica("web-4"))
        with_doomed = {**replicas, "web-4": doomed}
        proxy.configure(with_doomed)  # one was added
        sockets: list[EchoEnv] = []

        def spread() -> bool:
            sockets.append(opened.enter_context(EchoEnv(proxy.url, reconnect_s=20)))
            sockets[-1].reset()
            return len({replica_of(env) for env in sockets}) == 4 and len(sockets) >= visitors.sockets

        eventually(spread, "the replica that was added is used")
        over_http = [EchoOverHTTP(proxy.url) for _ in range(visitors.http)]
        for client in over_http:
            opened.callback(client.close)
            client.reset()
        over_mcp = [McpSession(proxy.url) for _ in range(visitors.mcp)]
        for session in over_mcp:
            opened.callback(session.close)
        homes = [replica_of(env) for env in sockets]
        kill(doomed)
        for env, home in zip(sockets, homes, strict=True):
            assert found(env) is (home != "web-4")
        http_homes = [client._http.cookies["EnvTorch-Session"].partition("~")[0] for client in over_http]
        for client, home in zip(over_http, http_homes, strict=True):
            assert found(client) is (home != "web-4")
        for session in over_mcp:
            expected = 404 if session.id.startswith("web-4~") else 200
            assert session.step("x").status_code == expected
        for env in sockets:
            env.reset()
            env.step(EchoAction(message="again"))


def found(client: EchoEnv | EchoOverHTTP) -> bool:
    """Whether the session was there; any other error than `SessionLost` is raised."""
    try:
        client.step(EchoAction(message="x"))
    except SessionLost:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_a_visitor_of_the_page_stays_on_one_replica(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="the page needs the extra `web`")
    with ExitStack() as opened:
        names = ("web-1", "web-2", "web-3")
        paged = {n: opened.enter_context(replica(n, ENABLE_WEB_INTERFACE="true")) for n in names}
        proxy = opened.enter_context(Proxy(kind, tmp_path))
        proxy.configure(paged)
        for visitor in range(3):
            agent = {"User-Agent": f"visitor {visitor}"}
            http = opened.enter_context(httpx.Client(base_url=proxy.url, headers=agent, trust_env=False))
            http.timeout = httpx.Timeout(60.0)
            assert http.get("/web/").status_code == 200
            assert http.post("/web/reset", json={}).status_code == 200
            for _ in range(5):
                assert http.post("/web/step", json={"action": {"message": "hello"}}).status_code == 200
            assert http.get("/web/state").json()["step_count"] == 5
