"""Sessions end when they should and not before; what a server says of itself while it works."""

import asyncio
import threading
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from envtorch import ConcurrencyConfig, EnvClient
from envtorch.errors import SessionLost
from envtorch.server import create_app
from tests import patient
from tests.faults.proxy import proxy_to
from tests.server.environments import AsyncObedient, Count, Obedient, Order, Report
from tests.support import PATIENCE_S, Running, cut, eventually, running


class ObedientEnv(EnvClient[Order, Report, Count]): ...


def server_with(grace_s: float, **options: Any) -> Any:
    config = ConcurrencyConfig(max_concurrent_envs=200, session_timeout=grace_s, reconnect_grace=grace_s)
    return running(create_app(Obedient, concurrency_config=config), **options)


def test_a_slow_step_is_never_reaped() -> None:
    Obedient.gate.clear()
    Obedient.entered.clear()
    with server_with(0.2) as server, ObedientEnv(server.url) as env:
        env.reset(episode_id="kept")
        answers: list[Any] = []
        slow = threading.Thread(target=lambda: answers.append(env.step(Order(do="wait"))))
        slow.start()
        assert Obedient.entered.wait(PATIENCE_S)
        cut(env)  # and the line drops meanwhile
        assert not Obedient.gate.wait(0.6), "three times the idle timeout"
        Obedient.gate.set()
        slow.join(PATIENCE_S)
        assert answers[0].observation.said == "wait"
        assert env.state().step_count == 1


def test_a_session_whose_client_vanished_is_gone_after_its_grace() -> None:
    with server_with(0.3) as server:
        env = ObedientEnv(server.url)
        env.reset()
        cut(env)
        eventually(lambda: server.sessions.phases() == {"detached": 1}, "it is detached")
        eventually(lambda: server.sessions.active == 0, "it is gone")
        with pytest.raises(SessionLost, match="could not be attached again"):
            env.step(Order(do="x"))
        env.close()


def test_a_client_that_comes_back_in_time_finds_its_episode() -> None:
    with server_with(30) as server, ObedientEnv(server.url) as env:
        env.reset(episode_id="mine")
        for _ in range(3):
            env.step(Order(do="x"))
            cut(env)
        assert (env.state().episode_id, env.state().step_count) == ("mine", 3)
        assert server.sessions.meter.resumed == 3


@pytest.mark.parametrize("subprotocol", [None, "envtorch.v1"], ids=["base", "extended"])
def test_a_hundred_half_open_sockets_free_their_slots(subprotocol: str | None) -> None:
    """Their line falls silent: nothing is closed, nothing arrives. Pings find out."""

    async def open_one(port: int) -> ClientConnection:
        offered = [Subprotocol(subprotocol)] if subprotocol else None
        socket = await connect(
            f"ws://127.0.0.1:{port}/ws", subprotocols=offered, ping_interval=None, open_timeout=PATIENCE_S
        )
        await socket.send('{"type":"session","id":1}' if subprotocol else '{"type":"reset"}')
        await socket.recv()
        return socket

    async def run(server: Running) -> None:
        port = int(server.url.rsplit(":", 1)[1])
        async with proxy_to(port) as proxy:
            sockets = [await open_one(proxy.port) for _ in range(100)]
            assert server.sessions.meter.opened == 100
            proxy.fall_silent()
            await asyncio.to_thread(eventually, lambda: server.sessions.active == 0, "all slots are free")
            for socket in sockets:
                socket.transport.abort()

    # Long enough for a loaded machine to open a session in; whether the first are free before the last are
    # opened does not matter.
    with server_with(0.2, ws_ping_interval=1.0, ws_ping_timeout=3.0) as server:
        asyncio.run(run(server))


def test_an_idle_blocking_client_is_not_taken_for_dead() -> None:
    """It answers no pings between calls, and says so; its kernel answers for it."""
    with (
        server_with(0.2, ws_ping_interval=0.1, ws_ping_timeout=0.1) as server,
        ObedientEnv(server.url) as env,
    ):
        env.reset(episode_id="kept")
        assert not threading.Event().wait(1.0)
        assert env.state().episode_id == "kept"
        assert server.sessions.meter.detached == 0


class TestReady:
    def test_not_while_full(self) -> None:
        with running(create_app(Obedient, sessions=1)) as server:
            assert patient.get(server.url + "/ready").json() == {"ready": True}
            with ObedientEnv(server.url) as env:
                env.reset()
                full = patient.get(server.url + "/ready")
                assert (full.status_code, full.json()["detail"]) == (503, "full")
            eventually(lambda: patient.get(server.url + "/ready").status_code == 200, "there is room again")

    def test_not_while_draining(self) -> None:
        with running(create_app(Obedient)) as server:
            server.sessions.draining = True
            draining = patient.get(server.url + "/ready")
            assert (draining.status_code, draining.json()["detail"]) == (503, "draining")
            with server.socket() as socket:
                assert '"DRAINING"' in str(socket.recv(timeout=PATIENCE_S))


def test_metrics_tell_what_happened() -> None:
    with running(create_app(AsyncObedient, max_concurrent_envs=4)) as server, ObedientEnv(server.url) as env:
        env.reset()
        for _ in range(5):
            env.step(Order(do="x"))
        with pytest.raises(ValueError, match="not legal"):
            env.step(Order.model_construct(do="illegal", metadata={}))
        text = patient.get(server.url + "/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['envtorch_calls_total{kind="step"}']) == 6
    assert float(lines['envtorch_calls_total{kind="reset"}']) == 1
    assert float(lines['envtorch_errors_total{code="VALIDATION_ERROR"}']) == 1
    assert float(lines['envtorch_sessions{phase="ready"}']) == 1
    assert float(lines["envtorch_sessions_opened_total"]) == 1
    assert float(lines['envtorch_step_seconds_bucket{le="+Inf"}']) == 6
    assert float(lines["process_resident_memory_bytes"]) > 1e6
    assert "process_cpu_seconds_total" in lines


def test_every_failure_is_logged_once_under_the_id_the_client_has(caplog: pytest.LogCaptureFixture) -> None:
    from envtorch.errors import EnvironmentFailed

    with running(create_app(Obedient)) as server, ObedientEnv(server.url) as env:
        env.reset()
        with pytest.raises(EnvironmentFailed) as caught:
            env.step(Order(do="fail"))
    error_id = caught.value.details["error_id"]
    logged = [record for record in caplog.records if getattr(record, "error_id", None) == error_id]
    assert len(logged) == 1
    assert logged[0].exc_info is not None, "with its traceback"
    assert len(logged[0].session_id) == 36  # type: ignore[attr-defined]
    assert logged[0].request_id >= 2, "the step's own id"  # type: ignore[attr-defined]
