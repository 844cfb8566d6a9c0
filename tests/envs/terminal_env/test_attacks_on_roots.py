"""Every attack on a writable root, as root and as an ordinary user, also on an image of the real engine."""

import os
import subprocess
from pathlib import Path

import pytest

from envtorch.errors import EnvTorchError
from tests.sandbox.elsewhere import NOBODY, run_module

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(600)]

IMAGE = "python:3.11-slim"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an image of the engine, in a file that everybody may read."""
    from envtorch.providers.image_export import export_image

    folder = tmp_path_factory.mktemp("image")
    for parent in (folder, *folder.parents):
        if parent.name.startswith("pytest-"):
            parent.chmod(0o755)
    folder.chmod(0o755)
    try:
        with export_image(IMAGE, pull="missing") as image, (folder / "image.tar").open("wb") as file:
            while data := image.archive.read(1 << 20):
                file.write(data)
    except EnvTorchError as error:
        pytest.skip(f"there is no engine with {IMAGE}: {error.message}")
    return folder / "image.tar"


def judge(done: "subprocess.CompletedProcess[str]") -> None:
    print(done.stdout)
    if done.returncode == 3:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BROKEN" not in done.stdout
    assert done.stdout.count(": held") >= 18


def test_the_machines_own_root_as_root() -> None:
    judge(run_module("tests.sandbox.workspace_attacks", "host", user=0))


@pytest.mark.parametrize("user", [0, NOBODY], ids=["root", "ordinary user"])
def test_an_image_of_the_engine(archive: Path, tmp_path: Path, user: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, user, user)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.name.startswith("pytest-"):
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    variables = {"ENVTORCH_CACHE": str(cache)}
    words = ("image", str(archive))
    judge(run_module("tests.sandbox.workspace_attacks", *words, user=user, variables=variables))
