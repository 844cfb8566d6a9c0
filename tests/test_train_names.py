"""The names of `envtorch.train` cost nothing until they are used."""

import subprocess
import sys

import pytest

from envtorch import train


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


def test_every_name_is_listed() -> None:
    assert dir(train) == sorted(train.__all__)
