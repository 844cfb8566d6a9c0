"""The proxy of sessions with an allow-list: what goes through it, what does not, and what is left of it."""

import asyncio
import contextlib
import http.server
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envtorch.sandbox import Policy, Workspace
from envtorch.sandbox.egress.allow_list_proxy import SessionNetwork
from envtorch.sandbox.egress.destinations import AllowList
from envtorch.sandbox.egress.proxy_limits import ProxyLimits
from envtorch.sandbox.network_access import NetworkLog, ProxyProcess, proxy_process
from tests.sandbox.roots import HOST, require_host_root
from tests.support import PATIENCE_S, eventually

ADDRESS = "127.0.0.2"
"""A loopback address that programs inside do not take for their own."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the first line and the host that it was sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{self.requestline} {self.headers['Host']}".encode()
        length = int(self.headers.get("Content-Length", 0))
        body += b" " + self.rfile.read(length) if length else b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  the name that the library calls

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of an HTTP server on this machine's loopback."""
    with http.server.ThreadingHTTPServer((ADDRESS, 0), Handler) as made:
        made.daemon_threads = True
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made.server_address[1]
        made.shutdown()
        thread.join()


class Door:
    """A proxy with one session whose listening socket is here: what a session sends is sent by the test."""

    def __init__(self, network: list[str], *, network_bytes: int = 1 << 30, **limits: float) -> None:
        self.proxy = ProxyProcess()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = listener.getsockname()
            policy = Policy(root="host", open_files=256, network=tuple(network), network_bytes=network_bytes)
            self.proxy.open("session", listener.fileno(), policy, **limits)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=PATIENCE_S)

    def say(self, data: bytes) -> bytes:
        """Everything that is answered to some bytes."""
        with self.connect() as client, contextlib.suppress(ConnectionError):
            client.sendall(data)
            return b"".join(iter(lambda: client.recv(65536), b""))
        return b""

    def get(self, url: str) -> bytes:
        return self.say(f"GET {url} HTTP/1.1\r\n\r\n".encode())

    def log(self) -> NetworkLog:
        return self.proxy.log("session")

    def close(self) -> None:
        self.proxy.close()


@pytest.fixture
def door(server: int) -> Iterator[Door]:
    made = Door([f"{ADDRESS}:{server}", f"localhost:{server}", "nowhere.invalid"], head_s=1.0, idle_s=2.0)
    yield made
    made.close()


def test_an_allowed_host_is_reached_plainly_and_by_a_tunnel(door: Door, server: int) -> None:
    assert door.get(f"http://{ADDRESS}:{server}/x").endswith(f"GET /x HTTP/1.1 {ADDRESS}:{server}".encode())
    tunnel = f"CONNECT {ADDRESS}:{server} HTTP/1.1\r\n\r\nGET /y HTTP/1.1\r\nConnection: close\r\n\r\n"
    answer = door.say(tunnel.encode())
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert b"GET /y" in answer
    log = door.log()
    assert [(one.method, one.host, one.port, one.allowed) for one in log.requests] == [
        ("GET", ADDRESS, server, True),
        ("CONNECT", ADDRESS, server, True),
    ]
    assert log.used == sum(one.sent + one.received for one in log.requests) > 0


@pytest.mark.parametrize(
    "target",
    [
        "127.0.0.1:{port}",
        "{address}:22",
        "[::1]:{port}",
        "[::ffff:127.0.0.2]:{port}",
        "127.0.2:{port}",
        "2130706434:{port}",
        "169.254.169.254:80",
        "example.org:443",
        "{address}.example.org:{port}",
        "localhost:{port}",  # a name on the list, which stands for an address that is not
    ],
)
def test_another_host_port_or_address_is_refused(door: Door, server: int, target: str) -> None:
    target = target.format(port=server, address=ADDRESS)
    for request in (f"CONNECT {target} HTTP/1.1\r\n\r\n", f"GET http://{target}/ HTTP/1.1\r\n\r\n"):
        assert door.say(request.encode()).split()[1] in (b"403", b"400")
    assert door.log().refused == 2


def test_a_name_may_stand_for_a_private_address_that_is_listed_too(server: int) -> None:
    made = Door([f"localhost:{server}", f"127.0.0.0/8:{server}"])
    try:
        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as local:
            port = local.server_address[1]
            second = Door([f"localhost:{port}", f"127.0.0.1:{port}"])
            thread = threading.Thread(target=local.handle_request)
            thread.start()
            assert b" 200 " in second.get(f"http://localhost:{port}/")
            thread.join()
            second.close()
        assert made.get(f"http://{ADDRESS}:{server}/").startswith(b"HTTP/1.1 200")
    finally:
        made.close()


def test_a_name_that_cannot_be_resolved_is_told(door: Door) -> None:
    assert door.say(b"CONNECT nowhere.invalid:443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 502")


def test_a_second_request_behind_the_first_is_not_sent_on(door: Door, server: int) -> None:
    here = f"http://{ADDRESS}:{server}"
    smuggled = f"GET {here}/second HTTP/1.1\r\n\r\n"
    answer = door.say(f"POST {here}/first HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody{smuggled}".encode())
    assert answer.endswith(b"body")
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"second" not in answer


def test_a_head_that_never_ends_is_given_up(door: Door) -> None:
    with door.connect() as client:
        client.sendall(b"GET http://a/ HTTP/1.1\r\nX: ")
        assert b"took too long" in client.recv(65536)
    assert b"too long" in door.say(b"GET http://a/ HTTP/1.1\r\n" + b"X: a\r\n" * 10_000)
    assert b"400" in door.say(b"\x16\x03\x01\x02\r\n\r\n")


def test_a_tunnel_that_is_idle_is_closed(door: Door, server: int) -> None:
    with door.connect() as client:
        client.sendall(f"CONNECT {ADDRESS}:{server} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        assert client.recv(65536) == b""


def test_slow_clients_of_one_session_hinder_no_other(server: int) -> None:
    slow = Door([f"{ADDRESS}:{server}"], connections=4, head_s=60.0)
    idle = [slow.connect() for _ in range(60)]
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            policy = Policy(root="host", open_files=256, network=(f"{ADDRESS}:{server}",))
            slow.proxy.open("other", listener.fileno(), policy)
            slow.address = listener.getsockname()
        assert b" 200 " in slow.get(f"http://{ADDRESS}:{server}/")
        assert slow.log().count == 4
    finally:
        for client in idle:
            client.close()
        slow.close()


def test_names_of_one_session_that_take_long_to_resolve_hinder_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver, resolved = socket.getaddrinfo, threading.Event()

    def resolve(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "slow.example.org":
            resolved.wait(PATIENCE_S)
        return resolver("127.0.0.1", *arguments, **options)

    def opened(name: str) -> SessionNetwork:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        limits = ProxyLimits(network_bytes=1 << 20, connect_s=PATIENCE_S / 2)
        network = SessionNetwork(listener, AllowList.of([name]), limits)
        network.start()
        return network

    async def ask(network: SessionNetwork, name: str) -> bytes:
        reader, writer = await asyncio.open_connection(*network.listener.getsockname())
        writer.write(f"CONNECT {name}:443 HTTP/1.1\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def play() -> bytes:
        slow, quick = opened("slow.example.org"), opened("quick.example.org")
        waiting = [asyncio.create_task(ask(slow, "slow.example.org")) for _ in range(40)]
        try:
            while slow.count < slow.limits.connections:  # noqa: ASYNC110  a counter tells of no change
                await asyncio.sleep(0.01)
            answer = await ask(quick, "quick.example.org")
            assert not any(task.done() for task in waiting)
        finally:
            resolved.set()
        assert all(b"not public" in one for one in await asyncio.gather(*waiting))
        await asyncio.gather(slow.close(), quick.close())
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert b"not public" in asyncio.run(play())


def test_thousands_of_connections_one_after_another_leave_nothing(server: int) -> None:
    door = Door([f"{ADDRESS}:{server}"], connections=8)
    try:
        folder = Path(f"/proc/{door.proxy.process.pid}/fd")
        before = len(list(folder.iterdir())) if os.geteuid() == 0 else 0
        for _ in range(2000):
            door.connect().close()
        assert b" 200 " in door.get(f"http://{ADDRESS}:{server}/")
        assert door.log().count == 2001
        assert len(door.log().requests) == 100
        if os.geteuid() == 0:
            eventually(lambda: len(list(folder.iterdir())) <= before, "the end of all connections")
    finally:
        door.close()


def test_the_bytes_of_a_session_are_limited(server: int) -> None:
    door = Door([f"{ADDRESS}:{server}"], network_bytes=2000)
    try:
        answers = [door.get(f"http://{ADDRESS}:{server}/{'x' * 200}") for _ in range(6)]
        assert answers[0].startswith(b"HTTP/1.1 200")
        assert b"bytes of network" in answers[-1]
    finally:
        door.close()


def test_closing_a_session_ends_its_connections_and_its_socket(door: Door, server: int) -> None:
    with door.connect() as client:
        client.sendall(f"CONNECT {ADDRESS}:{server} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        door.proxy.close_session("session")
        with contextlib.suppress(ConnectionError):
            assert client.recv(65536) == b""
    with pytest.raises(ConnectionError):
        door.connect()


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no rights to give up")
def test_the_proxy_has_no_rights_on_this_machine(door: Door) -> None:
    said = Path(f"/proc/{door.proxy.process.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert set(fields["Uid"].split()) == set(fields["Gid"].split()) == {"65534"}
    assert (int(fields["CapEff"], 16), fields["NoNewPrivs"].strip()) == (0, "1")


FETCH = (
    "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())'"
)


def policy_for(server: int) -> Policy:
    import dataclasses

    return dataclasses.replace(HOST, network=(f"{ADDRESS}:{server}",))


def test_a_session_reaches_what_is_listed_and_its_copies_too(server: int) -> None:
    require_host_root()
    with Workspace(policy_for(server)) as workspace:
        if workspace.run("command -v python3").exit_code:
            pytest.skip("this machine has no python3 to try")
        here = f"http://{ADDRESS}:{server}"
        assert workspace.run(f"{FETCH} {here}/a").output == f"GET /a HTTP/1.1 {ADDRESS}:{server}\n"
        refused = workspace.run(f"{FETCH} http://127.0.0.3:{server}/")
        assert "403" in refused.output
        (copy,) = workspace.fork()
        with copy:
            assert "GET /b" in copy.run(f"{FETCH} {here}/b").output
            assert [one.host for one in copy.network_log().requests] == [ADDRESS]
        assert workspace.network_log().refused == 1


def test_a_session_has_no_way_around_the_proxy(server: int) -> None:
    require_host_root()
    with Workspace(policy_for(server)) as workspace:
        direct = workspace.run(f"exec 3<>/dev/tcp/{ADDRESS}/{server}")
        assert direct.exit_code != 0
        assert workspace.run("exec 3<>/dev/tcp/192.0.2.1/80").exit_code != 0
        assert workspace.run("cat /etc/resolv.conf").output == ""
        assert workspace.run(
            "ls /sys/class/net 2>/dev/null; cut -d: -f1 /proc/net/dev | tail -n +3"
        ).output.split() == ["lo"]
        # Nothing of the proxy is a process or a file of the session's: there is nothing to kill or to open.
        workspace.run("kill -9 -1")
        assert workspace.run("exec 3<>/dev/tcp/127.0.0.1/3128 && echo there").output == "there\n"


def test_a_session_without_a_list_has_no_proxy() -> None:
    require_host_root()
    with Workspace(HOST) as workspace:
        assert workspace.run("echo [$http_proxy]; exec 3<>/dev/tcp/127.0.0.1/3128").exit_code != 0
        assert workspace.network_log() == NetworkLog()


def test_a_closed_session_leaves_nothing_in_the_proxy(server: int) -> None:
    require_host_root()
    workspace = Workspace(policy_for(server))
    proxy = proxy_process()
    workspace.run("exec 7<>/dev/tcp/127.0.0.1/3128; printf 'GET ' >&7")
    eventually(lambda: workspace.network_log().count == 1, "the connection")
    began = time.monotonic()
    workspace.close()
    assert time.monotonic() - began < PATIENCE_S
    assert proxy.log(workspace._name) == NetworkLog()
    assert proxy.is_alive()
