"""The files that one step passes, traced, are the ones that ARCHITECTURE.md lists."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import envtorch
from envtorch.envs.echo_env import EchoAction, EchoEnv
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import create_app
from tests.support import running

ROOT = Path(envtorch.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "ARCHITECTURE.md"
BEGIN, END = "<!-- walk of a step: begin -->", "<!-- walk of a step: end -->"
ENVIRONMENTS = "envs/"
"""An environment's own files are its author's, and not counted."""


class Tracer:
    """Notes the files of the package whose functions are called, on every thread started while it is on."""

    def __init__(self) -> None:
        self.is_noting = False
        self.files: set[str] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_noting and event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                self.files.add(path.relative_to(ROOT).as_posix())

    @contextmanager
    def on(self) -> Iterator[None]:
        before, before_in_threads = sys.getprofile(), threading.getprofile()
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before_in_threads)


def walked() -> set[str]:
    """The files of a step of the echo environment: client, server and environment in this process, over a
    real socket. What is done once per session or class has been done before."""
    tracer = Tracer()
    with tracer.on(), running(create_app(EchoEnvironment)) as server, EchoEnv(server.url) as env:
        env.reset()
        env.step(EchoAction(message="first"))
        tracer.is_noting = True
        result = env.step(EchoAction(message="second"))
        tracer.is_noting = False
    assert result.observation.echoed_message == "second"
    assert ENVIRONMENTS + "echo_env/environment.py" in tracer.files, "the environment was not traced"
    return {path for path in tracer.files if not path.startswith(ENVIRONMENTS)}


def documented() -> list[str]:
    text = DOCUMENT.read_text()
    block = text[text.index(BEGIN) : text.index(END)]
    return [line.split()[0] for line in block.splitlines() if line.split()[:1] and ".py " in line]


def test_a_step_passes_the_files_that_are_documented() -> None:
    listed = documented()
    assert len(set(listed)) == len(listed)
    assert walked() == set(listed)


def test_the_number_of_files_is_stated() -> None:
    assert f"{len(documented())} files" in DOCUMENT.read_text()
