"""Walking and copying trees of files."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envtorch.sandbox.guest import tree

_AT_ONCE = 8
_ROUNDS = 3


def test_copies_that_are_made_together_are_each_complete(tmp_path: Path) -> None:
    """Forks that are made together are given the same descriptor of their parent's files."""
    source = tmp_path / "source"
    source.mkdir()
    names = {f"file-{number}" for number in range(200)}
    for name in names:
        (source / name).write_text(name)
    shared = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for attempt in range(_ROUNDS):
                targets = [tmp_path / f"{attempt}-{number}" for number in range(_AT_ONCE)]
                for target in targets:
                    target.mkdir()
                list(threads.map(lambda target: tree.copy(shared, str(target)), targets))
                assert all(set(os.listdir(target)) == names for target in targets)
                for target in targets:
                    tree.remove(str(target))
    finally:
        os.close(shared)
    assert not list(tmp_path.glob("*-*")), "what was copied can be removed"
