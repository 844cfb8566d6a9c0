"""docs/recording.md: its Python runs, on what its own application recorded."""

import re
from pathlib import Path
from typing import Any

import pytest

from envtorch.envs.echo_env import EchoAction, EchoEnv
from tests.support import running

PAGE = Path(__file__).parents[2] / "docs/recording.md"


def test_every_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(first, PAGE.name, "exec"), names)
    with running(names["app"]) as server, EchoEnv(server.url) as env:
        env.reset(seed=7)
        env.step(EchoAction(message="hello"))
    for block in others:
        if "load_dataset" in block:
            continue  # in test_files.py
        exec(compile(block, PAGE.name, "exec"), names)
    assert "'message': 'hello'" in capsys.readouterr().out
