"""The names of `envtorch.train` cost nothing until they are used."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch import train
from envtorch.envs.echo_env import EchoEnv
from envtorch.errors import ConfigurationError
from envtorch.train.client_classes import client_class
from tests.train.frameworks import FRAMEWORKS

ROOT = Path(__file__).parents[1]
INTERNAL = {"__init__", "tool_methods"}
"""Modules of `envtorch.train` that nobody calls but adapters."""


def test_importing_the_package_imports_no_trainer() -> None:
    code = "import sys, envtorch.train; print(*sys.modules)"
    loaded = {
        name.split(".")[0]
        for name in subprocess.check_output([sys.executable, "-c", code], text=True).split()
    }
    assert loaded.isdisjoint({"torch", "transformers", "trl", "gymnasium", "numpy"})


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = train.nonsense


def test_a_client_is_a_class_or_its_name() -> None:
    assert client_class("envtorch.envs.echo_env:EchoEnv") is client_class(EchoEnv) is EchoEnv
    for wrong in ("json:loads", EchoEnv("http://127.0.0.1:1"), 3):
        with pytest.raises(ConfigurationError, match="is not a client class"):
            client_class(wrong)  # type: ignore[arg-type]


def test_every_name_is_listed() -> None:
    assert dir(train) == sorted(train.__all__)


def test_the_reference_has_every_adapter() -> None:
    page = (ROOT / "docs" / "reference" / "train.md").read_text()
    there = {path.stem for path in (ROOT / "src" / "envtorch" / "train").glob("*.py")} - INTERNAL
    assert set(re.findall(r"^::: envtorch\.train\.(\w+)$", page, re.M)) == there


def test_every_example_of_a_framework_is_run_by_make_test_train() -> None:
    frameworks = {framework.example: framework for framework in FRAMEWORKS}
    overview = (ROOT / "docs" / "train" / "index.md").read_text()
    for example, framework in frameworks.items():
        assert (ROOT / "examples" / f"{example}.py").is_file()
        assert example in (ROOT / framework.tests[0]).read_text(), f"{framework.tests[0]} does not run it"
        page = (ROOT / "docs" / "train" / f"{framework.page}.md").read_text()
        assert f"examples/{example}.py" in page, f"docs/train/{framework.page}.md does not name it"
        assert f"`examples/{example}.py`" in overview
    run = {place for framework in FRAMEWORKS for place in framework.tests}
    marked = [path for path in (ROOT / "tests/train").glob("test_*.py") if "mark.train" in path.read_text()]
    assert {str(path.relative_to(ROOT)) for path in marked} == run
    using = {path.stem for path in (ROOT / "examples").glob("*.py") if "envtorch.train" in path.read_text()}
    assert using <= frameworks.keys()
