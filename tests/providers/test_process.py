"""Child processes: what they inherit, what becomes of their own children, and who may start them."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

from envtorch.client import GenericEnvClient
from envtorch.errors import ConfigurationError, Draining, ServerExited
from envtorch.providers.child import ChildServer
from envtorch.providers.process import ProcessProvider
from envtorch.providers.provider_base import Phase
from envtorch.providers.ready import is_shutting_down
from envtorch.testing import PROBE_APP
from tests.support import PATIENCE_S, eventually


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.fixture
def family(tmp_path: Path) -> Path:
    """An application that starts a child, which starts a daemon of its own; both pids are written down."""
    (tmp_path / "family.py").write_text(
        textwrap.dedent("""
            import subprocess, sys
            from envtorch.testing.probe_server import app
            daemon = "import os, time; print(os.getpid(), flush=True); os.setsid(); time.sleep(600)"
            child = (
                "import os, subprocess, sys, time;"
                f"subprocess.Popen([sys.executable, '-c', {daemon!r}]);"
                "print(os.getpid(), flush=True); time.sleep(600)"
            )
            out = open("pids", "w")
            subprocess.Popen([sys.executable, "-c", child], stdout=out, start_new_session=True)
        """)
    )
    return tmp_path


def pids_of(family: Path) -> list[int]:
    eventually(
        lambda: (family / "pids").exists() and len((family / "pids").read_text().split()) == 2, "two pids"
    )
    return [int(pid) for pid in (family / "pids").read_text().split()]


def test_stop_ends_grandchildren_and_daemons_too(family: Path) -> None:
    with ProcessProvider() as provider:
        url = provider.start_container("family:app", directory=str(family))
        provider.wait_for_ready(url)
        pids = pids_of(family)
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))


def test_a_server_that_dies_takes_its_children_with_it(family: Path) -> None:
    with ProcessProvider() as provider:
        url = provider.start_container("family:app", directory=str(family))
        provider.wait_for_ready(url)
        pids = pids_of(family)
        server = provider._server
        assert isinstance(server, ChildServer)
        os.kill(server.pid, 9)  # the warden itself: the server dies of its parent's death
        eventually(lambda: provider.status().phase is Phase.EXITED, "the end is noticed")
        from envtorch.testing.provider import answers

        eventually(lambda: not answers(url), "the server is gone")
        for pid in pids:
            os.kill(pid, 9)


def test_a_server_outlives_the_thread_that_started_it() -> None:
    with ProcessProvider() as provider:
        with ThreadPoolExecutor(1) as threads:
            url = threads.submit(provider.start_container, PROBE_APP).result()
        provider.wait_for_ready(url)
        assert provider.status().phase is Phase.RUNNING


def test_a_child_of_the_owner_does_not_keep_the_server_alive() -> None:
    """A forked worker holds every descriptor of the owner; a pipe to the server would never end."""
    script = textwrap.dedent(f"""
        import os, sys, time
        from envtorch.providers.process import ProcessProvider
        provider = ProcessProvider()
        url = provider.start_container({PROBE_APP!r})
        provider.wait_for_ready(url)
        child = os.fork()
        if child == 0:
            os.close(1)
            time.sleep(600)
        print(provider._server.pid, child, flush=True)
        os.kill(os.getpid(), 9)
    """)
    owner = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    warden, child = map(int, owner.stdout.split())
    eventually(lambda: not is_alive(warden), "the server's warden is gone")
    assert is_alive(child)
    os.kill(child, 9)


def test_logs_after_stop_are_complete_however_late_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine the thread that reads the pipe may not have run when the server is stopped."""

    def read_at_the_end(stream: IO[bytes], lines: deque[str]) -> None:
        with stream:
            lines.extend(stream.read().decode().splitlines())

    monkeypatch.setattr("envtorch.providers.child._keep_lines", read_at_the_end)
    with ProcessProvider() as provider:
        provider.wait_for_ready(provider.start_container(PROBE_APP), timeout_s=PATIENCE_S)
        assert provider.logs() == ""
        provider.close()
        assert "probe: out" in provider.logs()


@pytest.mark.parametrize("image", ["no_colon", "module:", ":app", ""])
def test_what_names_no_application_is_refused(image: str) -> None:
    with pytest.raises(ConfigurationError, match="names no application"):
        ProcessProvider().start_container(image)


def test_an_application_that_cannot_be_imported_says_so() -> None:
    with ProcessProvider() as provider, pytest.raises(ServerExited) as caught:
        provider.wait_for_ready(provider.start_container("no_such_module:app"))
    assert "No module named 'no_such_module'" in caught.value.logs


def test_an_interpreter_that_is_not_there_says_so() -> None:
    with ProcessProvider() as provider, pytest.raises(ServerExited, match="code 127") as caught:
        provider.wait_for_ready(provider.start_container(PROBE_APP, python="/no/such/python"))
    assert "/no/such/python" in caught.value.logs


def test_a_misspelt_option_names_the_right_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'directory'"):
        ProcessProvider().start_container(PROBE_APP, directroy="/")


@pytest.fixture
def patient_app(tmp_path: Path) -> Path:
    """An environment whose steps wait for a file, and which writes one when it is closed."""
    (tmp_path / "patient_app.py").write_text(
        textwrap.dedent("""
            import os, pathlib, time
            from envtorch import Action, Environment, Observation, State, create_app

            class Wait(Action):
                path: str = ""

            class Process(Observation):
                pid: int = 0

            class Patient(Environment[Wait, Process, State]):
                SUPPORTS_CONCURRENT_SESSIONS = True

                def reset(self) -> Process:
                    return Process(pid=os.getpid())

                def step(self, action: Wait) -> Process:
                    while action.path and not pathlib.Path(action.path).exists():
                        time.sleep(0.01)
                    return Process(pid=os.getpid(), reward=1.0)

                @property
                def state(self) -> State:
                    return State()

                def close(self) -> None:
                    pathlib.Path("closed").touch()

            app = create_app(Patient, sessions=4)
        """)
    )
    return tmp_path


LONG = {"ENVTORCH_FINISH": "600", "ENVTORCH_DRAIN": "600"}


def test_a_server_that_is_told_to_stop_finishes_its_sessions_and_calls(patient_app: Path) -> None:
    with ProcessProvider() as provider, ThreadPoolExecutor(1) as threads:
        url = provider.start_container("patient_app:app", env_vars=LONG, directory=str(patient_app))
        provider.wait_for_ready(url, PATIENCE_S)
        with GenericEnvClient(url) as one, GenericEnvClient(url) as two:
            pid = one.reset().observation["pid"]
            two.reset()
            gate = patient_app / "gate"
            step = threads.submit(two.step, {"path": str(gate)})
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: is_shutting_down(url), "the server opens no session any more")
            with pytest.raises(Draining), GenericEnvClient(url) as late:
                late.reset()
            assert one.step({}).reward == 1.0
            gate.touch()
            assert step.result(PATIENCE_S).reward == 1.0
        eventually(lambda: provider.status().phase is Phase.EXITED, "it ends after its last session")
        assert provider.status().exit_code == 0


def test_stop_waits_for_no_session_and_closes_them_all(
    patient_app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envtorch.providers.child.GRACE_S", PATIENCE_S)  # nothing is killed meanwhile
    provider = ProcessProvider()
    url = provider.start_container("patient_app:app", env_vars=LONG, directory=str(patient_app))
    provider.wait_for_ready(url, PATIENCE_S)
    with GenericEnvClient(url) as env:
        env.reset()
        provider.stop_container()
    assert (patient_app / "closed").exists()
