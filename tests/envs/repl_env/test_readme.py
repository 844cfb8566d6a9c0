"""The environment's README, run: what a stranger copies works. The real model is a stub on a real socket."""

import re
from pathlib import Path
from typing import Any

import pytest

import envtorch
from envtorch.sandbox import report

from .stub_server import Behaviour, Heard, stub_server

README = Path(envtorch.__path__[0]) / "envs/repl_env/README.md"


def behave(heard: Heard) -> Behaviour:
    return Behaviour("```repl\nFINAL(max(set(context.split()), key=context.split().count))\n```")


def test_every_block_runs(
    sandboxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if report().grade != "host":
        pytest.skip("the README shows children that are forks, and sandboxes cannot be forked here")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("the whale and the sea and the ship")
    # A block may hold fences in a string, so it ends where a fence is followed by an empty line.
    blocks = re.findall(
        r"^`{3,4}python\n(.*?)^`{3,4}$(?=\n\n)", README.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert len(blocks) == 3
    with stub_server(behave) as stub:
        names: dict[str, Any] = {"__name__": "readme"}
        for block in blocks:
            exec(block.replace("http://127.0.0.1:11434/v1", stub.url), names)
    printed = capsys.readouterr().out
    assert "True 1.0 ['CAT', 'DOG']" in printed
    assert printed.splitlines().count("1000") == 2
    assert "answer='the'" in printed
