"""Replicas that pause, refuse or leave: their sessions stay theirs, and new ones go elsewhere."""

import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from envtorch.client import HTTPEnvClient
from envtorch.client.blocking.links import SocketLink
from envtorch.client.opening import reconnecting
from envtorch.envs.echo_env import EchoAction, EchoEnv, EchoObservation, EchoState
from envtorch.errors import Draining, SessionLost
from envtorch.protocol.reconnect import Reconnecting
from tests.proxies.proxies import Proxy, Served
from tests.proxies.test_proxies import replica_of
from tests.support import cut, eventually

TOO_LARGE = 40_000_000
PAUSE_S = 6.0


class EchoOverHTTP(HTTPEnvClient[EchoAction, EchoObservation, EchoState]): ...


class Pair(NamedTuple):
    """Two replicas, and a proxy in front."""

    proxy: Proxy
    replicas: dict[str, Served]


@pytest.fixture(params=["nginx", "haproxy"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as opened:
        replicas = {n: opened.enter_context(Served(n)) for n in ("web-1", "web-2")}
        proxy = opened.enter_context(Proxy(request.param, tmp_path))
        proxy.configure(replicas)
        yield Pair(proxy, replicas)


def send_to(processes: Iterable[subprocess.Popen[str]], number: signal.Signals) -> None:
    for process in processes:
        process.send_signal(number)


def home_of(client: EchoOverHTTP) -> str:
    return client._http.cookies["EnvTorch-Session"].partition("~")[0]


def send_too_much(proxy: Proxy, name: str) -> None:
    """A request with a large body, which the server does not read to its end, for a session of a replica."""
    host, port = proxy.url.removeprefix("http://").split(":")
    head = f"POST /step HTTP/1.1\r\nHost: {host}\r\nEnvTorch-Session: {name}~x\r\nContent-Length: {TOO_LARGE}"
    with socket.create_connection((host, int(port))) as stranger:
        try:
            stranger.sendall(f"{head}\r\n\r\n".encode() + b"x" * TOO_LARGE)
            stranger.recv(100)
        except OSError:
            pass  # it was refused before it was read


def test_a_stranger_s_request_takes_no_session_away(pair: Pair) -> None:
    with ExitStack() as opened:
        env = opened.enter_context(EchoEnv(pair.proxy.url))
        env.reset()
        client = EchoOverHTTP(pair.proxy.url)
        opened.callback(client.close)
        client.reset()
        for name in pair.replicas:
            send_too_much(pair.proxy, name)
        client.step(EchoAction(message="here"))
        cut(env)
        env.step(EchoAction(message="here, too"))
        assert env.state().step_count == client.state().step_count == 1


def test_sessions_of_a_replica_that_pauses_are_not_lost(pair: Pair) -> None:
    with ExitStack() as opened:
        env = opened.enter_context(EchoEnv(pair.proxy.url))
        env.reset()
        client = EchoOverHTTP(pair.proxy.url, request_timeout_s=60)
        opened.callback(client.close)
        client.reset()
        paused = {pair.replicas[name].process for name in (replica_of(env), home_of(client))}
        send_to(paused, signal.SIGSTOP)
        going_on = threading.Timer(PAUSE_S, send_to, (paused, signal.SIGCONT))
        going_on.start()
        opened.callback(going_on.join)
        threading.Event().wait(PAUSE_S / 2)  # the proxy has looked at them, more than once
        cut(env)
        client.step(EchoAction(message="later"))
        env.step(EchoAction(message="later"))
        assert env.state().step_count == client.state().step_count == 1


def test_new_sessions_avoid_a_replica_that_is_leaving(pair: Pair) -> None:
    with ExitStack() as opened:
        staying: list[EchoEnv] = []

        def on_both() -> bool:
            staying.append(opened.enter_context(EchoEnv(pair.proxy.url)))
            staying[-1].reset()
            return len({replica_of(env) for env in staying}) == 2

        eventually(on_both, "there is a session on each")
        leaving = pair.replicas["web-1"]
        leaving.process.send_signal(signal.SIGTERM)
        eventually(lambda: httpx.get(f"{leaving.base_url}/ready").status_code == 503, "it is leaving")
        eventually(lambda: all(opens_a_session(pair.proxy) for _ in range(6)), "the proxy has noticed")
        for _ in range(6):
            assert opens_a_session(pair.proxy)
        for env in staying:
            cut(env)
            env.step(EchoAction(message="I am still there"))


def opens_a_session(proxy: Proxy) -> bool:
    """Whether sessions are opened, by both doors, and on the replica that stays."""
    client = EchoOverHTTP(proxy.url)
    try:
        with EchoEnv(proxy.url) as env:
            env.reset()
            assert replica_of(env) == "web-2"
        client.reset()
        assert home_of(client) == "web-2"
    except Draining:
        return False
    finally:
        client.close()
    return True


def test_another_replica_does_not_say_that_a_session_is_gone(pair: Pair) -> None:
    """Asked without a proxy: it cannot know, unless a proxy has seen that nothing listens there."""
    url = pair.replicas["web-2"].base_url
    with httpx.Client(base_url=url, trust_env=False) as http:
        for header, path in (("EnvTorch-Session", "/step"), ("Mcp-Session-Id", "/mcp")):
            asked = {"action": {"message": "x"}, "jsonrpc": "2.0", "id": 1, "method": "ping"}
            unknown = http.post(path, json=asked, headers={header: "web-1~something"})
            assert unknown.status_code == 503
            assert unknown.json()["code"] == "SESSION_ELSEWHERE"
            assert unknown.headers["Retry-After"] == "1"
            gone = {header: "web-1~something", "EnvTorch-Replica-Gone": "web-1"}
            assert http.post(path, json=asked, headers=gone).status_code == 404
            assert http.post(path, json=asked, headers={header: "web-2~something"}).status_code == 404


def test_a_session_that_is_never_found_is_lost_within_the_time_to_reconnect(pair: Pair) -> None:
    url = pair.replicas["web-2"].base_url
    with EchoEnv(url, reconnect_s=2) as env:
        env.reset()
        connection_of(env).channels.replica = "web-1"
        cut(env)
        with pytest.raises(SessionLost, match="503"):
            env.step(EchoAction(message="x"))
    client = EchoOverHTTP(url, request_timeout_s=3)
    client._http.cookies.set("EnvTorch-Session", "web-1~something")
    with pytest.raises(SessionLost, match="web-1"):
        client.step(EchoAction(message="x"))
    client.close()


def test_a_session_whose_replica_died_is_played_again_behind_the_proxy(pair: Pair) -> None:
    with EchoEnv(pair.proxy.url, recover="replay") as env:
        env.reset(seed=1)
        env.step(EchoAction(message="one"))
        home = connection_of(env).channels.replica
        assert home is not None
        pair.replicas[home].process.kill()
        pair.replicas[home].process.wait()
        env.step(EchoAction(message="two"))
        assert env.state().step_count == 2
        assert connection_of(env).channels.replica != home


def connection_of(env: EchoEnv) -> Reconnecting:
    link = env._link
    assert isinstance(link, SocketLink)
    connection = reconnecting(link._session)
    assert connection is not None
    return connection
