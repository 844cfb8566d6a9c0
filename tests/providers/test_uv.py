"""Projects run by uv: local ones, cloned ones, and those that are none."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import ConfigurationError, MissingExtra, ProviderFailed, ServerExited
from envtorch.extras import install_command
from envtorch.providers.hub import Space
from envtorch.providers.uv import UVOptions, UVProvider, clone, split_revision, uv_command
from envtorch.testing import probe_server
from tests import patient
from tests.providers.subjects import PROBE_PROJECT


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with the probe's project in it, and a tag on its first commit."""
    place = tmp_path / "repository"
    shutil.copytree(PROBE_PROJECT, place, ignore=shutil.ignore_patterns("uv.lock", "__pycache__"))
    shutil.copy(probe_server.__file__, place / "server" / "app.py")
    commit = ["git", "-C", str(place), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run([*commit, *arguments], check=True)
    (place / "second").write_text("")
    for arguments in (["add", "."], ["commit", "-qm", "second"]):
        subprocess.run([*commit, *arguments], check=True)
    return place


def test_a_repository_is_cloned_served_and_removed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with UVProvider(f"git+file://{repository}@v1") as provider:
        assert provider.base_url is not None
        clones = list(tmp_path.glob("envtorch-clone@*"))
        assert len(clones) == 1
        assert not (clones[0] / "second").exists(), "v1 was asked for"
    assert not list(tmp_path.glob("envtorch-clone@*"))


def test_a_repository_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ProviderFailed, match=r"cloning file:///no/such/place failed: fatal:"):
        UVProvider("git+file:///no/such/place").start()
    assert not list(tmp_path.iterdir())


def test_a_repository_without_a_project_is_told(repository: Path) -> None:
    (repository / "pyproject.toml").unlink()
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", "-C", str(repository), *identity, "commit", "-qam", "third"], check=True)
    with pytest.raises(ProviderFailed, match="it has no pyproject"):
        clone(f"git+file://{repository}")


def test_a_directory_without_a_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it has no pyproject"):
        UVProvider(tmp_path)


def test_a_project_whose_packages_do_not_exist_says_so(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.11"\n'
        'dependencies = ["envtorch-there-is-no-such-package"]\n[tool.uv]\npackage = false\n'
    )
    provider = UVProvider(tmp_path)
    provider.start(offline=True)
    with pytest.raises(ServerExited) as caught:
        provider.wait_for_ready()
    provider.close()
    assert "envtorch-there-is-no-such-package" in caught.value.logs


def test_settings_of_uv_do_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX_PROBE_PASSWORD", "secret")
    provider = UVProvider(PROBE_PROJECT)
    with provider:
        answer = patient.get(f"{provider.base_url}/environ/UV_INDEX_PROBE_PASSWORD", trust_env=False)
    assert answer.status_code == 404


def test_the_command_is_made_by_a_pure_function() -> None:
    command = uv_command("uv", "/p", "server.app:app", UVOptions(python="3.12", offline=True), ["UV_A"])
    assert command[:6] == ["uv", "run", "--isolated", "--no-progress", "--project", "/p"]
    assert command[6:14] == ["--python", "3.12", "--offline", "--", "env", "-u", "UV_A", "python"]
    assert command[-2:] == ["{fd}", "server.app:app"]


def test_without_uv_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("uv"))):
        UVProvider(PROBE_PROJECT)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://host/owner/name", ("https://host/owner/name", None)),
        ("https://host/owner/name@v1.2", ("https://host/owner/name", "v1.2")),
        ("ssh://git@host/owner/name", ("ssh://git@host/owner/name", None)),
        ("ssh://git@host/owner/name@main", ("ssh://git@host/owner/name", "main")),
    ],
)
def test_a_revision_is_told_from_a_user(address: str, expected: tuple[str, str | None]) -> None:
    assert split_revision(address) == expected


@given(
    owner=st.from_regex(r"[\w.-]{1,20}", fullmatch=True), name=st.from_regex(r"[\w.-]{1,20}", fullmatch=True)
)
def test_every_space_has_a_name_that_an_image_can_have(owner: str, name: str) -> None:
    if not (owner + name).isascii():
        return
    space = Space(f"{owner}/{name}")
    assert space.subdomain.replace("-", "").isalnum() or set(space.subdomain) == {"-"}
    assert len(space.subdomain) == len(space.repo_id)
    assert space.image == f"registry.hf.space/{space.subdomain}:latest"
