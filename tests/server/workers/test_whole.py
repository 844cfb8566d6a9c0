"""A server of several workers as one server: its capacity, its numbers, its losses and its end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from envtorch.errors import CapacityReached, SessionLost
from tests import patient
from tests.server.test_extended import Wire, extended
from tests.server.workers.app import Tell, TellerEnv
from tests.server.workers.support import ROOT, WorkersServer, step, workers_server
from tests.support import PATIENCE_S, eventually

HERE, THERE = 0, 1

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def is_alive(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


class TestConnections:
    def test_are_spread_evenly(self, two: WorkersServer) -> None:
        async def main() -> list[int]:
            envs = [TellerEnv.aio(two.url) for _ in range(16)]
            lives = []
            for env in envs:
                await env.connect()
                lives.append((await env.reset()).observation.process)
            await asyncio.gather(*(env.close() for env in envs))
            return lives

        lives = asyncio.run(main())
        eventually(lambda: two.sessions() == 0, "all are closed")
        assert {lives.count(process) for process in set(lives)} == {8}


class TestCapacity:
    def test_is_the_whole_servers(self, two: WorkersServer) -> None:
        """Sixteen in all, wherever they are opened; both workers know when there is no room."""
        with two.wire(HERE) as here, two.wire(THERE) as there:
            for channel in range(15):
                here.open(ch=channel)
            assert there.open(ch=0)["session_id"]
            for wire in (here, there):
                full = wire.ask(type="session", id=90, ch=90)["data"]
                assert (full["code"], full["active_sessions"]) == ("CAPACITY_REACHED", 16)
            for worker in (HERE, THERE):
                with two.http(worker) as http:
                    assert http.get("/ready").json() == {"ready": False, "detail": "full"}
                    assert http.post("/reset").status_code == 503
            there.say({"type": "session", "id": 91, "ch": 91, "data": {"wait_s": 30}})
            here.close(0)
            assert there.hear_all({91})[91]["type"] == "session", (
                "who waits is given what comes free elsewhere"
            )
            for channel in range(1, 15):
                here.close(channel)
            there.close(0)
            there.close(91)
        eventually(lambda: two.sessions() == 0, "all are closed")
        with two.http(THERE) as http:
            assert http.get("/ready").json() == {"ready": True}

    def test_who_stops_waiting_takes_no_slot(self, two: WorkersServer) -> None:
        with two.wire(HERE) as here:
            for channel in range(16):
                here.open(ch=channel)
            with two.wire(THERE) as there:
                full = there.ask(type="session", id=1, data={"wait_s": 0.05})
                assert full["data"]["code"] == "CAPACITY_REACHED"
            for channel in range(16):
                here.close(channel)
            opened = [here.open(ch=100 + channel) for channel in range(16)]
            assert len(opened) == 16
            for channel in range(16):
                here.close(100 + channel)

    def test_a_second_way_to_a_session_that_waits_finds_it(self, two: WorkersServer) -> None:
        token = "asked-for-twice-while-it-waits"
        with two.wire(HERE) as here, two.wire(THERE) as there, two.wire(HERE) as third:
            for channel in range(16):
                here.open(ch=channel)
            asked = {"type": "session", "id": 1, "data": {"token": token, "wait_s": 30}}
            there.say(asked)
            there.socket.socket.shutdown(2)  # the line breaks while it waits
            third.say(asked)
            here.close(0)
            assert third.hear_all({1})[1]["data"]["token"] == token
            assert two.sessions() == 16
            for channel in range(1, 16):
                here.close(channel)
            third.close(0)
        eventually(lambda: two.sessions() == 0, "there was one session, not two")


def test_metrics_are_everybodys(two: WorkersServer) -> None:
    with two.wire(HERE) as here, two.wire(THERE) as there:
        here.open()
        there.open()
        for worker in (HERE, THERE):
            with two.http(worker) as http:
                text = http.get("/metrics").text
            for name in ("envtorch_sessions_opened_total", "process_cpu_seconds_total"):
                assert {f'{name}{{worker="{number}"}}' for number in (0, 1)} == {
                    line.split()[0] for line in text.splitlines() if line.startswith(name)
                }
            assert text.count("# TYPE envtorch_step_seconds histogram") == 1
        here.close()
        there.close()


@linux_only
class TestLosses:
    @pytest.mark.timeout(600)
    def test_a_worker_killed_under_load_costs_its_own_sessions_only(self) -> None:
        async def play(url: str, stop: asyncio.Event, stepped: asyncio.Queue[int]) -> tuple[int, str]:
            process, steps = 0, 0
            try:
                async with TellerEnv.aio(
                    url, connect_timeout_s=PATIENCE_S, message_timeout_s=PATIENCE_S
                ) as env:
                    process = (await env.reset()).observation.process
                    while not stop.is_set():
                        result = await env.step(Tell(wait_s=0.01))
                        steps += 1
                        assert result.observation.total == steps, "lost or doubled"
                        stepped.put_nowait(process)
                return process, "whole"
            except SessionLost as error:
                return process, f"lost: {error}"

        async def main(server: WorkersServer) -> None:
            victim = await asyncio.to_thread(server.process_of, THERE)
            survivor = await asyncio.to_thread(server.process_of, HERE)
            stop, stepped = asyncio.Event(), asyncio.Queue[int]()
            players = [asyncio.ensure_future(play(server.url, stop, stepped)) for _ in range(20)]
            seen: list[int] = []
            while min(seen.count(victim), seen.count(survivor)) < 50:
                seen.append(await stepped.get())
            os.kill(victim, signal.SIGKILL)
            for _ in range(400):
                await stepped.get()
            stop.set()
            endings = await asyncio.gather(*players)
            of_survivor = [ending for process, ending in endings if process == survivor]
            of_victim = [ending for process, ending in endings if process == victim]
            assert len(of_survivor) + len(of_victim) == 20
            assert of_survivor
            assert of_victim
            assert set(of_survivor) == {"whole"}
            assert all(ending.startswith("lost") and "SIGKILL" in ending for ending in of_victim), of_victim
            successor = await asyncio.to_thread(server.process_of, THERE)
            assert successor not in (victim, survivor)

        with workers_server(capacity=20) as server:
            asyncio.run(main(server))
            eventually(lambda: server.sessions() == 0, "the slots of the lost ones are free")
            with server.wire(THERE) as wire:
                for channel in range(20):
                    wire.open(ch=channel)

    def test_a_far_session_is_lost_with_its_worker_and_the_socket_lives_on(self) -> None:
        with workers_server() as server:
            with server.wire(HERE) as here, server.wire(THERE) as there:
                there.open(ch=0)
                token = here.open()["token"]
                there.ask(type="attach", id=1, ch=1, data={"token": token})
                there.say({**step(2, wait_s=60), "ch": 1})
                with server.http(HERE) as http:
                    session = http.post("/reset").headers["EnvTorch-Session"]
                victim = server.process_of(HERE)
                os.kill(victim, signal.SIGKILL)
                lost = there.hear_all({2})[2]["data"]
                assert (lost["code"], lost["message"][:19]) == ("SESSION_ERROR", "the session is gone")
                assert there.ask(**step(3), ch=1)["data"]["code"] == "SESSION_ERROR"
                assert there.ask(**step(4), ch=0)["data"]["observation"]["total"] == 1
                eventually(lambda: not is_alive(victim), "the worker is gone")
            with server.http(THERE) as http:
                gone = http.get("/state", headers={"EnvTorch-Session": session})
                assert (gone.status_code, gone.json()["code"]) == (404, "SESSION_ERROR")
                assert "SIGKILL" in gone.json()["detail"]
                cookie = {"Cookie": f"EnvTorch-Session={session}"}
                assert http.get("/state", headers=cookie).status_code == 404
                fresh = http.post("/reset", headers={"EnvTorch-Session": session})
                assert fresh.headers["EnvTorch-Session"] != session, "a new episode, in a new session"

    def test_workers_end_with_their_master(self) -> None:
        with workers_server() as server:
            workers = server.processes()
            assert len(workers) == 2
            server.process.kill()
            server.process.wait(PATIENCE_S)
            eventually(lambda: not any(map(is_alive, workers)), "no worker is left")

    @pytest.mark.slow
    def test_a_session_may_be_opened_anew_under_a_lost_token(self) -> None:
        token = "chosen-once-and-used-again"
        with workers_server() as server:
            with server.wire(HERE) as here:
                here.open(token=token)
                os.kill(server.process_of(HERE), signal.SIGKILL)
            with server.wire(THERE) as there:
                eventually(
                    lambda: there.ask(type="attach", id=1, data={"token": token})["type"] == "error", "lost"
                )
                assert there.open(token=token)["token"] == token
                with server.wire(HERE) as here:
                    assert here.ask(type="attach", id=2, data={"token": token})["type"] == "session"


@contextmanager
def tcp_wire(server: WorkersServer, worker: int) -> Iterator[Wire]:
    """A socket over TCP, whose end is in good order, that came to this worker."""
    process = server.process_of(worker)
    with ExitStack() as tried:
        while True:
            wire = tried.enter_context(extended(server.url))
            wire.open()
            if wire.ask(**step(1))["data"]["observation"]["process"] == process:
                wire.close()
                yield wire
                return


@linux_only
class TestTheEnd:
    def test_what_runs_is_answered_wherever_it_runs(self, tmp_path: Path) -> None:
        """A step of one worker, asked through the other, while both shut down."""
        with workers_server() as server:
            workers = server.processes()
            directory = Path(server.address(0)).parent
            with server.wire(HERE) as here, tcp_wire(server, THERE) as there:
                token = here.open()["token"]
                there.ask(type="attach", id=1, data={"token": token})
                there.say(step(2, wait_for=str(tmp_path / "go")))
                eventually(lambda: server.metrics().count('phase="busy"') > 0, "the step runs")
                server.process.send_signal(signal.SIGTERM)
                assert [message["type"] for message in there.hear()] == ["draining"]
                (tmp_path / "go").touch()
                assert there.hear_all({2})[2]["data"]["observation"]["total"] == 1
            assert server.process.wait(PATIENCE_S) == 0
            assert not any(map(is_alive, workers))
            assert not directory.exists()

    @pytest.mark.slow
    def test_a_second_signal_hurries(self) -> None:
        with workers_server(drain_s=60) as server, server.wire(HERE) as here:
            here.open()
            here.say(step(1, wait_s=60))
            with server.http(HERE) as http:
                while http.get("/metrics").text.count('phase="busy"') == 0:
                    pass
            server.process.send_signal(signal.SIGTERM)
            assert here.hear()[0]["type"] == "draining"
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE_S) == 0


@pytest.mark.slow
class TestHowMany:
    def test_no_more_workers_than_sessions(self) -> None:
        with workers_server(capacity=1) as server:
            assert server.workers == 1
            reset = patient.post(server.url + "/reset").json()
            assert reset["observation"]["total"] == 0
            assert patient.post(server.url + "/step", json={"action": {}}).json()["observation"]["total"] == 1

    def test_one_for_an_environment_that_all_share(self) -> None:
        with workers_server(environment="tests.server.workers.app:shared") as server:
            assert server.workers == 1


@pytest.mark.slow
class TestWhereEnvironmentsLive:
    def test_on_threads(self) -> None:
        with workers_server(environment="tests.server.workers.app:BlockingTeller", workers=3) as server:
            assert server.workers == 3
            lives = set()
            with ExitStack() as held:
                for _ in range(3):
                    env = held.enter_context(TellerEnv(server.url))
                    env.reset()
                    lives.add(env.step(Tell()).observation.process)
            assert lives == {server.process_of(worker) for worker in range(3)}

    @linux_only
    def test_in_processes_of_their_own(self) -> None:
        with (
            workers_server(
                environment="tests.server.workers.app:BlockingTeller", isolation="process", capacity=4
            ) as server,
            server.wire(HERE) as here,
            server.wire(THERE) as there,
        ):
            token = here.open()["token"]
            own = here.ask(**step(1))["data"]["observation"]["process"]
            assert own not in (server.process_of(HERE), server.process_of(THERE))
            there.ask(type="attach", id=2, data={"token": token})
            (copy,) = there.ask(type="fork", id=3, data={"n": 1})["data"]["sessions"]
            there.ask(type="attach", id=4, ch=1, data={"token": copy["token"]})
            copied = there.ask(**step(5), ch=1)["data"]["observation"]
            assert (copied["total"], copied["process"] == own) == (2, False)
            os.kill(server.process_of(HERE), signal.SIGKILL)
            eventually(lambda: not is_alive(own) and not is_alive(copied["process"]), "all are gone")


def test_an_application_that_cannot_be_loaded_is_told() -> None:
    code = (
        "from envtorch.server.workers import serve_workers; "
        "serve_workers('tests.server.workers.app:nothing', workers=2, port=0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1
    assert "ConfigurationError: module 'tests.server.workers.app' has no 'nothing'" in done.stderr, (
        done.stderr
    )


def test_a_client_forks_and_is_told_of_a_full_server(two: WorkersServer) -> None:
    with TellerEnv(two.url) as env:
        env.reset(seed=3)
        copies = env.fork(4)
        totals = [copy.step(Tell()).observation.total for copy in copies]
        assert totals == [4, 4, 4, 4]
        with pytest.raises(CapacityReached):
            env.fork(16)
        for copy in copies:
            copy.close()
