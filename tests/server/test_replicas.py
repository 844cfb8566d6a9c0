"""One of several servers behind a proxy: what it answers for another one's session, and when it is full."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import create_app
from tests import patient
from tests.server.test_mcp_conformance import initialize, stateless
from tests.support import Running, running

ELSEWHERE = "web-1~something"
GONE = {"EnvTorch-Replica-Gone": "web-1"}
CREATE = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, name: str | None, sessions: int = 4) -> Iterator[Running]:
    if name is not None:
        monkeypatch.setenv("ENVTORCH_REPLICA", name)
    with running(create_app(EchoEnvironment, max_concurrent_envs=sessions)) as server:
        yield server


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    with serving(monkeypatch, "web-2") as server:
        yield server


def post(server: Running, path: str, body: Any = None, **headers: str) -> httpx.Response:
    return patient.post(server.url + path, json=body or {}, headers=headers)


class TestSessionsOfAnotherReplica:
    def test_an_agent_s_prepared_session_is_sought_until_its_replica_is_gone(self, replica: Running) -> None:
        asked = {"EnvTorch-Session": ELSEWHERE}
        sought = post(replica, "/mcp", initialize(), **asked)
        assert (sought.status_code, sought.headers["Retry-After"]) == (503, "1")
        assert "try again" in sought.json()["error"]["message"]
        lost = post(replica, "/mcp", initialize(), **asked, **GONE)
        assert lost.status_code == 200
        assert "is gone" in lost.json()["error"]["message"]

    def test_they_are_not_said_to_be_closed(self, replica: Running) -> None:
        asked = {"EnvTorch-Session": ELSEWHERE}
        refused = post(replica, "/close", **asked)
        assert (refused.status_code, refused.json()["code"]) == (503, "SESSION_ELSEWHERE")
        assert "set-cookie" not in refused.headers, "the caller's cookie is as good as before"
        assert post(replica, "/close", **asked, **GONE).json() == {"closed": False}
        assert post(replica, "/close", **{"EnvTorch-Session": "web-2~unknown"}).json() == {"closed": False}

    def test_they_are_not_said_to_be_deleted(self, replica: Running) -> None:
        asked = {"X-Session-ID": ELSEWHERE}
        assert post(replica, "/delete", **asked).status_code == 503
        assert post(replica, "/delete", **asked, **GONE).status_code == 200

    def test_a_reset_begins_an_episode_here(self, replica: Running) -> None:
        """Also where no proxy says that the replica is gone: it may know that replica no longer."""
        begun = post(replica, "/reset", **{"EnvTorch-Session": ELSEWHERE})
        assert begun.status_code == 200
        assert begun.headers["EnvTorch-Session"].startswith("web-2~")


class TestFullReplicas:
    @pytest.mark.parametrize("name", [None, "web-2"])
    def test_refuse_agents_so_that_a_proxy_asks_the_next(
        self, name: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(monkeypatch, name, sessions=1) as server:
            post(server, "/mcp", CREATE)
            body, headers = stateless("tools/call", name="step", arguments={"message": "x"})
            for refused in (post(server, "/mcp", initialize()), post(server, "/mcp", body, **headers)):
                assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
                assert "at capacity: 1/1" in refused.json()["error"]["message"]
            assert server.sessions.active == 1

    @pytest.mark.parametrize(("name", "status"), [(None, 200), ("web-2", 503)])
    def test_refuse_clients_of_openenv_where_there_may_be_a_next(
        self, name: str | None, status: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(monkeypatch, name, sessions=1) as server:
            assert post(server, "/mcp", CREATE).status_code == 200
            refused = post(server, "/mcp", CREATE)
            assert refused.status_code == status
            assert refused.json()["error"]["data"] == {"active_sessions": 1, "max_sessions": 1}

    def test_tell_the_official_client_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def play(url: str) -> None:
            async with (
                streamable_http_client(f"{url}/mcp") as streams,
                ClientSession(streams[0], streams[1]) as session,
            ):
                with pytest.raises(Exception, match="at capacity: 1/1"):
                    await session.initialize()

        with serving(monkeypatch, "web-2", sessions=1) as server:
            post(server, "/mcp", CREATE)
            asyncio.run(play(server.url))


def test_a_server_that_is_shutting_down_refuses_agents(replica: Running) -> None:
    replica.sessions.finishing = True
    refused = post(replica, "/mcp", initialize())
    assert refused.status_code == 503
    assert "shutting down" in refused.json()["error"]["message"]
