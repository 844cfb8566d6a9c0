"""A token given to `reset` is looked for where it must not be: state, logs, trajectory, sandbox."""

import gc
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envtorch.envs.repl_env import REPLAction, REPLEnv, REPLEnvironment, REPLObservation
from envtorch.envs.repl_env.model_calls import ModelCalls
from envtorch.envs.repl_env.trajectory import TrajectoryWriter
from envtorch.server import create_app
from envtorch.settings import REPLSettings
from tests.support import running

from .places import SMALL
from .stub_server import Behaviour, Heard, StubServer, stub_server

TOKEN = f"hf_{hashlib.sha256(os.urandom(8)).hexdigest()[:34]}"

# Looks through the whole memory of every process it can see for what a token looks like. It must not know the
# token itself, or it would find its own copy: it tells the digests of what it finds.
SEARCH = """
import glob, hashlib, os, re, subprocess
found = set()
looks_like = re.compile(b'hf' + b'_[0-9a-f]{34}')
for maps in glob.glob('/proc/[0-9]*/maps'):
    process = maps.split('/')[2]
    try:
        memory = open(f'/proc/{process}/mem', 'rb', 0)
        regions = [line.split()[:2] for line in open(maps)]
    except OSError:
        continue
    for place, rights in regions:
        if 'r' not in rights:
            continue
        start, end = (int(part, 16) for part in place.split('-'))
        for position in range(start, end, 1 << 20):
            try:
                data = os.pread(memory.fileno(), min((1 << 20) + 64, end - position), position)
            except (OSError, OverflowError):
                break
            found |= {hashlib.sha256(match).hexdigest() for match in looks_like.findall(data)}
readable = [path for path in glob.glob('/proc/[0-9]*/environ') if os.access(path, os.R_OK)]
environment = b''.join(open(path, 'rb').read() for path in readable)
found |= {hashlib.sha256(match).hexdigest() for match in looks_like.findall(environment)}
found |= {hashlib.sha256(match).hexdigest() for match in looks_like.findall(repr(os.environ).encode())}
print(sorted(found), len(environment) > 0)
"""
PLANTED = "planted = 'hf' + '_' + '0123456789abcdef' * 2 + 'ab'"


def gossip(heard: Heard) -> Behaviour:
    """A server that repeats what it was told in confidence."""
    shown = heard.headers.get("authorization", "")
    return Behaviour(f"you are {shown}", status=401 if heard.prompt == "refuse" else 200)


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with stub_server(gossip) as server:
        yield server


def environment(stub: StubServer, observer: TrajectoryWriter) -> REPLEnvironment:
    settings = REPLSettings(llm_base_url=stub.url)
    return REPLEnvironment(policy=SMALL, settings=settings, observer=observer)


@pytest.mark.parametrize("place", ["local", "remote"])
def test_the_token_is_nowhere_but_in_the_request(
    place: str, stub: StubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, sandboxes: None
) -> None:
    caplog.set_level(logging.DEBUG)
    written = tmp_path / "run.jsonl"
    with TrajectoryWriter(written) as observer:
        if place == "local":
            with REPLEnv.local(lambda: environment(stub, observer)) as env:
                told = play(env)
        else:
            app = create_app(lambda: environment(stub, observer), REPLAction, REPLObservation)
            with running(app) as server, REPLEnv(server.url) as env:
                told = play(env)
    assert {heard.headers["authorization"] for heard in stub.heard} == {f"Bearer {TOKEN}"}
    assert len(stub.heard) == 3
    assert "you are Bearer ***" in told
    assert TOKEN not in told
    assert TOKEN not in caplog.text
    assert TOKEN not in written.read_text()
    assert "Bearer ***" in written.read_text()


def test_a_servers_recording_leaves_the_token_out(stub: StubServer, tmp_path: Path, sandboxes: None) -> None:
    settings = REPLSettings(llm_base_url=stub.url)
    app = create_app(
        lambda: REPLEnvironment(policy=SMALL, settings=settings), REPLAction, REPLObservation, record=tmp_path
    )
    with running(app) as server, REPLEnv(server.url) as env:
        env.reset(hf_token=TOKEN, context="recorded")
        env.execute("print(llm_query('hello'))")
    written = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert "recorded" in written
    assert "you are Bearer ***" in written
    assert TOKEN not in written


def play(env: REPLEnv) -> str:
    """Everything a client is told in an episode with a token, and in the one after it."""
    told: list[object] = [env.reset(hf_token=TOKEN, context="c")]
    for code in (
        "print(llm_query('hello'))",
        "llm_query('refuse')",
        "llm_query_batched(['refuse'])",
        "globals()",
        "import os; dict(os.environ)",
    ):
        told += [env.execute(code), env.state()]
    search = env.execute(SEARCH)
    assert search.observation.result.stdout == "[] True\n", search.observation.result
    env.execute(PLANTED)
    planted = hashlib.sha256(b"hf_" + b"0123456789abcdef" * 2 + b"ab").hexdigest()
    control = env.execute(SEARCH).observation.result.stdout
    assert planted in control, "the search finds what is there"
    told += [search, env.submit_final_answer("x"), env.state(), env.reset(), env.state()]
    return repr(told) + "".join(str(each) for each in told)


def test_nothing_of_ours_holds_the_token_after_its_episode(stub: StubServer, sandboxes: None) -> None:
    made: list[REPLEnvironment] = []

    def make() -> REPLEnvironment:
        made.append(REPLEnvironment(policy=SMALL, settings=REPLSettings(llm_base_url=stub.url)))
        return made[0]

    with REPLEnv.local(make) as env:
        env.reset(hf_token=TOKEN)
        env.execute("llm_query('hello')")
        assert TOKEN not in repr(vars(made[0]))
        env.reset()
        gc.collect()
        holders = [o for o in gc.get_objects() if isinstance(o, ModelCalls) and o.secret == TOKEN]
        assert holders == []
        assert "Bearer" not in env.execute("llm_query('hello')").observation.result.stdout
