"""Every attack on a writable root, in every place of the table in `docs/workspaces.md`: as root and as an
ordinary user, on an image of the real engine, and in its containers."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from envtorch.errors import EnvTorchError
from tests.envs.terminal_env.root_places import (
    PLACES,
    Attacked,
    InContainer,
    OnMachine,
    Place,
    Refused,
    table_row,
)
from tests.sandbox.elsewhere import ROOT, run_module
from tests.sandbox.workspace_attacks import BROKEN, HELD, NAMES, UNTRIED

IMAGE = "python:3.11-slim"
MODULE = "tests.sandbox.workspace_attacks"
NOT_STARTED = 125
"""What `docker run` ends with where the engine cannot start such a container."""
Done = subprocess.CompletedProcess[str]


def test_the_table_of_the_page_has_these_places_and_no_others() -> None:
    page = (ROOT / "docs/workspaces.md").read_text()
    table = page.partition("| where | held | broken | could not be tried |\n|---|---|---|---|\n")[2]
    assert table.partition("\n\n")[0].splitlines() == [table_row(place) for place in PLACES]


def test_the_table_counts_every_attack() -> None:
    counted = [place.outcome for place in PLACES if isinstance(place.outcome, Attacked)]
    assert [one.held + one.untried for one in counted] == [len(NAMES)] * len(counted)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an image of the engine, in a file that everybody may read."""
    from envtorch.providers.image_export import export_image

    folder = tmp_path_factory.mktemp("image")
    let_everybody_enter(folder)
    try:
        with export_image(IMAGE, pull="missing") as image, (folder / "image.tar").open("wb") as file:
            while data := image.archive.read(1 << 20):
                file.write(data)
    except EnvTorchError as error:
        pytest.skip(f"there is no engine with {IMAGE}: {error.message}")
    return folder / "image.tar"


def let_everybody_enter(folder: Path) -> None:
    for one in (folder, *folder.parents):
        if one == folder or one.name.startswith("pytest-"):
            one.chmod(0o755)


def attack_on_machine(tried: OnMachine, archive: Path | None, folder: Path) -> Done:
    if archive is None:
        return run_module(MODULE, "host", user=tried.user)
    let_everybody_enter(folder)
    cache = folder / "cache"
    cache.mkdir()
    os.chown(cache, tried.user, tried.user)
    variables = {"ENVTORCH_CACHE": str(cache)}
    return run_module(MODULE, "image", str(archive), user=tried.user, variables=variables)


def attack_in_container(tried: InContainer, archive: Path) -> Done:
    """Our sources and packages are mounted: the container's Python is of the same version."""
    if shutil.which("docker") is None:
        pytest.skip("the program `docker` is not here to start a container")
    if sys.version_info[:2] != (3, 11):
        pytest.skip(f"the packages of this Python are not for that of {IMAGE}")
    mounted = {
        ROOT / "src": "/envtorch/src",
        ROOT / "tests": "/envtorch/tests",
        Path(sysconfig.get_path("purelib")): "/envtorch/packages",
        archive.parent: "/envtorch/image",
    }
    variables = {
        "PYTHONPATH": "/envtorch/src:/envtorch:/envtorch/packages",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",
    }
    options = ["--rm", "--network", "none"]
    for place, inside in mounted.items():
        options += ["--volume", f"{place}:{inside}:ro"]
    for name, value in variables.items():
        options += ["--env", f"{name}={value}"]
    command = ["python", "-m", MODULE, "image", f"/envtorch/image/{archive.name}"]
    done = subprocess.run(
        ["docker", "run", *options, *tried.options, IMAGE, *command], capture_output=True, text=True
    )
    if done.returncode == NOT_STARTED:
        pytest.skip(f"the engine starts no such container: {done.stderr.strip()}")
    return done


@pytest.mark.attacks
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("place", "tried"),
    [pytest.param(place, tried, id=str(tried)) for place in PLACES for tried in place.tried],
)
def test_a_place_is_as_the_table_says(
    place: Place, tried: OnMachine | InContainer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if isinstance(tried, InContainer):
        done = attack_in_container(tried, request.getfixturevalue("archive"))
    else:
        archive = request.getfixturevalue("archive") if tried.on_image else None
        done = attack_on_machine(tried, archive, tmp_path)
    print(done.stdout)
    if isinstance(place.outcome, Refused):
        assert done.returncode == 3, done.stdout + done.stderr
        assert re.search(place.outcome.because, done.stdout), done.stdout
        return
    if done.returncode == 3:
        pytest.skip(f"this machine's kernel or engine allows no writable root there: {done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    assert list(outcomes) == NAMES
    assert BROKEN not in outcomes.values()
    counts = [list(outcomes.values()).count(outcome) for outcome in (HELD, UNTRIED)]
    print(f"{place.where}: {counts[0]} held, {counts[1]} could not be tried")
    assert counts[0] >= 18
