"""The README's Python, run in order against a real server: what a stranger copies works."""

import ast
import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.docs.run_page import blocks_of
from tests.envs.coding_env.conftest import why_no_sandbox
from tests.support import Running

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "src/envtorch/envs/echo_env/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, echo_server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [block for block in blocks_of((ROOT / page).read_text()) if block.language == "python"]
    assert blocks
    names: dict[str, Any] = {"__name__": "readme"}
    for block in blocks:
        if "CodingEnv" in block.body and why_no_sandbox():
            continue  # told in the sandbox's own tests, which are skipped here for the same reason
        source = block.body.replace("http://127.0.0.1:8000", echo_server.url)
        code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if block.need is not None:
            continue  # not every machine has it: `make test-train` runs what this block uses
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))
        else:
            exec(code, names)
    assert "1.3" in capsys.readouterr().out
    if "app" in names:
        assert names["app"].state.env_server.max_concurrent_envs == 64
    if hasattr(names.get("env"), "close"):
        names["env"].close()
