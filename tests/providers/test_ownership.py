"""Who owns what, and what a sweep may remove."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.providers.ownership import OwnerTag
from envtorch.providers.sweeper import is_orphan, owned_directory, sweep_directories


def test_this_process_is_alive_and_written_as_a_label() -> None:
    tag = OwnerTag.current()
    assert not tag.is_dead
    assert tag.pid == os.getpid()
    assert OwnerTag.parse(str(tag)) == tag
    assert len(str(tag)) <= 63, "longer than a Kubernetes label may be"


@given(st.text())
def test_any_label_can_be_read(text: str) -> None:
    tag = OwnerTag.parse(text)
    assert tag is None or not tag.is_dead or str(tag).startswith(tag.host)


def test_a_process_that_ended_is_dead_and_a_recycled_pid_is_not_taken_for_it() -> None:
    here = OwnerTag.current()
    assert OwnerTag(here.host, here.pid, started="1").is_dead
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    assert OwnerTag(here.host, int(ended.stdout), started="1").is_dead


def test_an_owner_on_another_machine_is_never_called_dead() -> None:
    assert not OwnerTag("0123456789abcdef", pid=1, started="1").is_dead


@pytest.mark.parametrize("label", ["", "nonsense", "a.b.c", "host.12", "host.12.x"])
def test_what_is_none_of_ours_is_left_alone(label: str) -> None:
    assert not is_orphan(label)


def test_directories_of_the_dead_are_removed_and_of_the_living_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = Path(owned_directory("clone"))
    here = OwnerTag.current()
    dead = tmp_path / f"envtorch-clone@{OwnerTag(here.host, here.pid, '1')}-abc"
    dead.mkdir()
    (dead / "file").write_text("left behind")
    assert [swept.name for swept in sweep_directories()] == [str(dead)]
    assert mine.is_dir()
    assert not dead.exists()
