"""docs/recording.md: its Python runs, on what its own application recorded."""

import re
from pathlib import Path
from typing import Any

import pytest

from envtorch.envs.echo_env import EchoAction, EchoEnv
from tests.support import running

PAGE = Path(__file__).parents[2] / "docs/recording.md"


def test_every_block_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    application = next(block for block in blocks if "create_app(" in block)
    names: dict[str, Any] = {}
    exec(compile(application, PAGE.name, "exec"), names)
    with running(names["app"]) as server, EchoEnv(server.url) as env:
        env.reset(seed=7)
        env.step(EchoAction(message="hello"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recordings").symlink_to(names["directory"])  # what the page reads
    for block in blocks:
        if block == application or "load_dataset" in block:  # the latter in test_files.py
            continue
        if "http://127.0.0.1:8000" in block:  # run by tests/docs, with the server that it needs
            continue
        exec(compile(block, PAGE.name, "exec"), names)
    assert "'message': 'hello'" in capsys.readouterr().out
