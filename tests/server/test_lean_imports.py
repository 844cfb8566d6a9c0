"""Packages that are opened when somebody asks something of them."""

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

from envtorch.server.lean_imports import leave_unopened, models_built_when_used

OPENED: list[str] = []
"""What the package below notes when its `__init__` runs."""

INIT = f"""
from {__name__} import OPENED
OPENED.append(__name__)
from unopened_example import inside
value = inside.value + 1
"""
INSIDE = "value = 1\nimport unopened_example\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "unopened_example"
    directory.mkdir()
    (directory / "__init__.py").write_text(INIT)
    (directory / "inside.py").write_text(INSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    OPENED.clear()
    yield directory
    for name in ("unopened_example", "unopened_example.inside"):
        sys.modules.pop(name, None)


def unopened(**homes: str) -> ModuleType:
    leave_unopened("unopened_example", homes)
    return importlib.import_module("unopened_example")


def test_its_modules_can_be_had_without_it(package: Path) -> None:
    unopened()
    assert importlib.import_module("unopened_example.inside").value == 1
    assert OPENED == []


def test_asking_for_a_name_opens_it_once(package: Path) -> None:
    module = unopened()
    assert module.value == 2
    assert module.value == 2
    assert OPENED == ["unopened_example"]
    with pytest.raises(AttributeError, match="nonsense"):
        _ = module.nonsense
    assert OPENED == ["unopened_example"]


def test_a_name_can_come_from_its_home(package: Path) -> None:
    assert unopened(value="unopened_example.inside").value == 1
    assert OPENED == []


def test_many_threads_find_it_whole(package: Path) -> None:
    module = unopened()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(module.value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 8
    assert OPENED == ["unopened_example"]


def test_why_it_cannot_be_opened_is_told_each_time(package: Path) -> None:
    (package / "__init__.py").write_text("import there_is_no_such_module")
    module = unopened()
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
            _ = module.value


def test_what_asks_while_it_opens_is_told_that_it_is_too_early(package: Path) -> None:
    (package / "inside.py").write_text("from unopened_example import value")
    module = unopened()
    with pytest.raises(ImportError, match="value"):
        _ = module.value


def test_one_with_a_getattr_of_its_own_keeps_it(package: Path) -> None:
    (package / "__init__.py").write_text("def __getattr__(name): return name.upper()")
    module = unopened()
    assert module.value == "VALUE"
    assert module.other == "OTHER"


def test_what_is_there_already_is_left_alone(package: Path) -> None:
    before = importlib.import_module("unopened_example")
    assert unopened() is before
    assert "__getattr__" not in vars(before)


def test_what_is_not_installed_is_not_made_up() -> None:
    leave_unopened("there_is_no_such_module", {})
    assert "there_is_no_such_module" not in sys.modules


def test_models_are_built_at_once_again_afterwards() -> None:
    with models_built_when_used():

        class Later(BaseModel):
            number: int

    class AtOnce(BaseModel):
        number: int

    assert not Later.__pydantic_complete__
    assert AtOnce.__pydantic_complete__
    assert Later(number=1).number == 1
    assert Later.__pydantic_complete__
