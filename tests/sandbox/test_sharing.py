"""Text from a memory file: an ordinary `str` inside, whatever its characters, shared by forks."""

import hashlib
import os

import pytest

from envtorch.errors import OutOfResources
from envtorch.sandbox import Outcome, Policy, Sandbox, SharedText

MEGABYTE = 2**20
LONG = 100_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "short é",
        "plain " * LONG,
        "é" * LONG,
        "€uro" * LONG,
        "😀 and more" * LONG,
        "\ud800 alone" * LONG,
        "nul \0 inside" * LONG,
    ],
    ids=["empty", "one", "short", "ascii", "latin", "wide", "astral", "surrogate", "nul"],
)
def test_it_is_the_same_text_and_a_real_str(sandbox: Sandbox, text: str) -> None:
    with SharedText(text) as shared:
        sandbox.share("given", shared)
    found = sandbox.run(
        "import hashlib\n"
        "copy = ''.join(list(given))\n"
        "digest = hashlib.sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()\n"
        "[digest, type(given) is str, given == copy, hash(given) == hash(copy), len(given), {given: 1}[copy]]"
    ).json()
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    assert found == [digest, True, True, True, len(text), 1]


def test_it_lives_on_where_it_is_held_and_does_not_fall_with_its_name(sandbox: Sandbox) -> None:
    with SharedText("needle " * LONG) as shared:
        sandbox.share("given", shared)
    result = sandbox.run(
        "import gc, sys\n"
        "kept = {'it': given}\n"
        "for _ in range(1000): other = given\n"
        "del given, other; gc.collect()\n"
        "kept['it'].count('needle'), kept['it'].upper()[:6]"
    )
    assert result.value == f"({LONG}, 'NEEDLE')"
    assert sandbox.run("del kept; gc.collect(); 1").value == "1"


def test_no_sandbox_can_change_the_text_of_another(sandbox: Sandbox) -> None:
    with SharedText("x" * LONG) as shared, Sandbox(sandbox.policy) as other:
        for each in (sandbox, other):
            each.share("given", shared)
        assert sandbox.run("given = given.replace('x', 'A'); given.count('A')").value == str(LONG)
        assert other.run("given.count('x')").value == str(LONG)
        with pytest.raises(PermissionError):
            os.pwrite(shared.fileno(), b"y", 0)


def test_a_fork_has_it_and_pays_nothing_for_it(forkable: Sandbox) -> None:
    size = 32 * MEGABYTE
    with SharedText("y" * size) as shared:
        forkable.share("given", shared)
    lines = "(line.split() for line in open('/proc/self/smaps_rollup') if line.startswith('Private_'))"
    own = f"sum(int(words[1]) for words in {lines})"  # what no other process has
    (fork,) = forkable.fork()
    with fork:
        assert fork.run("given.count('y')").value == str(size)
        assert int(fork.run(own).json()) * 1024 < size / 2
        assert int(forkable.run(own).json()) * 1024 < size / 2


def test_more_than_fits_is_refused_and_costs_nothing() -> None:
    with Sandbox(Policy(memory_bytes=16 * MEGABYTE)) as sandbox, SharedText("z" * 64 * MEGABYTE) as shared:
        sandbox.run("kept = 1")
        with pytest.raises(OutOfResources, match="67108864 characters"):
            sandbox.share("given", shared)
        result = sandbox.run("kept, 'given' in globals()")
        assert (result.outcome, result.value) == (Outcome.OK, "(1, False)")
