"""What is built ahead of need: handed out once, never dead, and gone with whom it was made for."""

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from envtorch.sandbox import Policy, Sandbox
from envtorch.sandbox.driver import drive
from envtorch.sandbox.flows import _prebuilt_for
from envtorch.sandbox.prebuilt import Prebuilt
from tests.support import PATIENCE_S, eventually


@pytest.fixture
def builder() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def own(policy: Policy, request: pytest.FixtureRequest) -> Policy:
    """A policy that no other test uses, so that its prebuilt is empty."""
    return dataclasses.replace(policy, timeout_s=10.0 + hash(request.node.name) % 1000 / 1000)


def test_one_is_built_at_a_time_and_hands_each_out_once(builder: ThreadPoolExecutor) -> None:
    prebuilt: Prebuilt[object] = Prebuilt()
    built: list[object] = []

    def build() -> object:
        built.append(object())
        return built[-1]

    assert drive(prebuilt.take()) is None
    prebuilt.order(builder, build, least=2)
    assert drive(prebuilt.take()) is None
    prebuilt.order(builder, build, least=2)
    prebuilt.order(builder, build, least=2)
    assert drive(prebuilt.take()) is built[0]
    assert drive(prebuilt.take()) is None
    assert len(built) == 1


def test_a_spare_that_could_not_be_built_is_no_spare(builder: ThreadPoolExecutor) -> None:
    prebuilt: Prebuilt[object] = Prebuilt()
    prebuilt.order(builder, lambda: 1 / 0)
    assert drive(prebuilt.take()) is None
    prebuilt.order(builder, object)
    assert drive(prebuilt.take()) is not None


def test_a_closed_one_gives_up_what_it_has_and_takes_no_more_orders(builder: ThreadPoolExecutor) -> None:
    prebuilt: Prebuilt[int] = Prebuilt()
    begun, go_on = threading.Event(), threading.Event()

    def build() -> int:
        begun.set()
        go_on.wait(PATIENCE_S)
        return 7

    prebuilt.order(builder, build)
    begun.wait(PATIENCE_S)
    builder.submit(lambda: None)
    go_on.set()
    assert drive(prebuilt.close()) == 7
    prebuilt.order(builder, build)
    assert drive(prebuilt.take()) is None


def test_the_third_sandbox_of_a_policy_was_there_before_it_was_asked_for(own: Policy) -> None:
    with Sandbox(own), Sandbox(own):
        spare = _prebuilt_for(own)._waiting
        assert spare is not None
        waiting = spare.result(PATIENCE_S)
        with Sandbox(own) as third:
            assert third._core is waiting
            assert third.run("2 + 2").json() == 4


def test_a_spare_that_was_killed_is_not_handed_out(own: Policy) -> None:
    with Sandbox(own), Sandbox(own):
        spare = _prebuilt_for(own)._waiting
        assert spare is not None
        waiting = spare.result(PATIENCE_S)
        waiting.handle.kill()
        eventually(waiting.handle.is_gone, "the spare is gone")
        with Sandbox(own) as third:
            assert third.run("2 + 2").json() == 4
        assert waiting.closed


def test_a_fork_into_waiting_walls_has_the_files_of_its_moment(forkable: Sandbox) -> None:
    forkable.fork()[0].close()
    assert forkable._core.lineage.next_fork._waiting is not None
    forkable.run("import os; open('late', 'w').write('now'); os.chmod('late', 0)")
    forkable.run("os.mkdir('closed'); open('closed/in', 'w').write('x'); os.chmod('closed', 0)")
    with forkable.fork()[0] as fork:
        assert fork.run("oct(os.stat('late').st_mode & 0o777)").value == "'0o0'"
        assert fork.run("os.chmod('late', 0o600); open('late').read()").value == "'now'"
        assert fork.run("os.chmod('closed', 0o700); os.listdir('closed')").json() == ["in"]


def test_walls_nobody_moved_into_end_with_the_sandbox(forkable: Sandbox) -> None:
    forkable.fork()[0].close()
    spare = forkable._core.lineage.next_fork._waiting
    assert spare is not None
    slot = spare.result(PATIENCE_S)
    process = slot.handle.host_process()
    assert os.path.exists(f"/proc/{process}")
    forkable.close()
    assert slot.closed
    assert not os.path.exists(f"/proc/{process}")


def test_nothing_is_left_of_spares_when_their_owner_ends() -> None:
    code = """
import os
from envtorch.sandbox import Sandbox
from envtorch.sandbox.flows import _prebuilt_for
from envtorch.sandbox.zygotes import owned_resources
made = [Sandbox() for _ in range(3)]
if made[0].report().protects("fork"):
    made[0].fork()[0].close()
spare = _prebuilt_for(made[0].policy)._waiting.result(60)
print(spare.handle.host_process(), *{str(folder) for folder in owned_resources().groups.folders.values()})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stderr == ""
    process, *groups = done.stdout.split()
    assert not os.path.exists(f"/proc/{process}")
    assert [group for group in groups if os.path.exists(group)] == []
