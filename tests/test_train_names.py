"""The names of `envtorch.train` cost nothing until they are used."""

import subprocess
import sys

import pytest

from envtorch import train
from envtorch.envs.echo_env import EchoEnv
from envtorch.errors import ConfigurationError
from envtorch.train.client_classes import client_class


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
