"""The advice on a missing extra is a command that works for the EnvTorch that is installed."""

import json
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from envtorch import extras
from envtorch.errors import MissingExtra


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({}, "pip install 'envtorch[web]'"),
        (
            {"url": "file:///home/me/env%20torch", "dir_info": {"editable": True}},
            "pip install --editable '/home/me/env torch[web]'",
        ),
        ({"url": "file:///home/me/envtorch", "dir_info": {}}, "pip install '/home/me/envtorch[web]'"),
        (
            {"url": "https://example.org/envtorch-1.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'envtorch[web] @ https://example.org/envtorch-1.0-py3-none-any.whl'",
        ),
        (
            {"url": "https://example.org/envtorch.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'envtorch[web] @ git+https://example.org/envtorch.git@abc'",
        ),
    ],
    ids=["an index", "an editable checkout", "a checkout", "a wheel", "a repository"],
)
def test_an_extra_is_added_from_where_envtorch_came_from(
    origin: dict[str, Any], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return json.dumps(origin) if origin else None

    monkeypatch.setattr(extras, "distribution", lambda name: Installed())
    assert extras.install_command("web") == command


def test_a_package_that_was_never_installed_is_advised_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert extras.install_command("web") == "pip install 'envtorch[web]'"


def test_the_error_says_what_needs_the_extra_and_how_to_get_it() -> None:
    error = extras.missing_extra("web", "the web page needs Gradio")
    assert isinstance(error, MissingExtra)
    assert str(error) == f"the web page needs Gradio: {extras.install_command('web')}"
