"""Every attack is contained: as root, as an ordinary user, and without namespaces."""

import collections
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envtorch.sandbox import Sandbox
from tests.support import PATIENCE_S

from . import attack_runner
from .attacks import Target, attacks
from .elsewhere import NOBODY, run_module

GROUPS = {
    "descriptors", "disk", "ends", "host environment", "host files", "memory", "namespaces", "neighbours",
    "network", "other processes", "output", "proc", "processes", "protocol", "python", "shared stores",
    "signals", "staying",
    "time", "undo", "writes",
}  # fmt: skip
NOWHERE = Target(0, "/x", 1, "/x", "x")
COUNT = len(attacks(NOWHERE))
PARTS = 4


@pytest.fixture(scope="module")
def siege() -> Iterator[tuple[Target, Sandbox]]:
    with attack_runner.besieged(attack_runner.policy(container=False)) as besieged:
        yield besieged


def test_the_suite_is_as_large_as_promised() -> None:
    found = attacks(NOWHERE)
    assert {attack.group for attack in found} == GROUPS
    assert len({attack.name for attack in found}) == len(found) >= 60
    sizes = collections.Counter(attack.group for attack in found)
    print(f"\n{len(found)} attacks: " + ", ".join(f"{group} {sizes[group]}" for group in sorted(sizes)))


@pytest.mark.parametrize("number", range(COUNT), ids=[attack.name for attack in attacks(NOWHERE)])
def test_contained_as_we_are(siege: tuple[Target, Sandbox], number: int) -> None:
    target, neighbour = siege
    attack = attacks(target)[number]
    went = attack_runner.carry_out(attack, attack_runner.policy(container=False), target, neighbour)
    assert went["contained"], went


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    ("user", "container", "grade"),
    [(NOBODY, False, "host"), (NOBODY, True, "container"), (0, True, "container")],
    ids=["ordinary user", "container grade, ordinary user", "container grade, root"],
)
def test_contained_elsewhere(user: int, container: bool, grade: str, part: int) -> None:
    options = ["--container"] if container else []
    done = run_module("tests.sandbox.attack_runner", *options, "--part", f"{part}/{PARTS}", user=user)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    assert lines[0]["user"] == user
    if lines[0]["grade"] != grade:
        pytest.skip(f"an ordinary user gets {lines[0]['grade']} grade here")
    assert [line for line in lines[1:] if not line["contained"]] == []
    assert len(lines) - 1 == len(range(part, COUNT, PARTS)), done.stderr


def test_the_attacks_do_work_where_there_are_no_walls(tmp_path: Path) -> None:
    """A suite that cannot fail proves nothing: most harmless attacks succeed in a plain interpreter."""
    with attack_runner.besieged(attack_runner.policy(container=False)) as (target, _):
        groups = ("host files", "host environment", "network")
        harmless = [attack for attack in attacks(target) if attack.group in groups]
        escaped = 0
        for attack in harmless:
            done = subprocess.run(
                [sys.executable, "-c", attack.code],
                env={**os.environ},
                cwd=tmp_path,  # what they write, they write here
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            escaped += "ESCAPED" in done.stdout
    assert escaped >= len(harmless) // 2
