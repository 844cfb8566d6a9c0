"""`envtorch push`: what would go, what goes, and what never does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.cli.new import ProjectNames, write_project
from envtorch.cli.space import dockerfile_for, gather, readme_for
from envtorch.errors import ConfigurationError
from tests.cli.hub import a_hub
from tests.support import PATIENCE_S

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


def push(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "envtorch.cli", "push", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", **environ},
    )


@pytest.fixture
def game(tmp_path: Path) -> Path:
    write_project(tmp_path / "game", ProjectNames.of("game"))
    return tmp_path / "game"


def test_a_dry_run_shows_what_would_go_and_sends_nothing(game: Path, tmp_path: Path) -> None:
    done = push(str(game), "--to", "me/game", "--dry-run", "--into", str(tmp_path / "out"), HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert "Nothing was sent." in done.stdout
    assert "Dockerfile" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    dockerfile = (tmp_path / "out/Dockerfile").read_text()
    assert "envtorch-base" not in "".join(
        line for line in dockerfile.splitlines() if not line.startswith("#")
    )
    assert dockerfile.rstrip().endswith(
        'CMD ["envtorch", "serve", ".", "--host", "0.0.0.0", "--port", "8000"]'
    )
    assert list((tmp_path / "out").glob("envtorch-*.whl"))


def test_what_is_sent(game: Path, tmp_path: Path) -> None:
    with a_hub(TOKEN) as hub:
        environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
        done = push(str(game), "--to", "me/game", "--private", "--json", **environ)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["space"] == "me/game"
    assert TOKEN not in done.stdout + done.stderr
    (repository,) = hub.repositories
    assert (repository["type"], repository["sdk"]) == ("space", "docker")
    assert hub.files["README.md"].startswith(b"---\ntitle: Game\nsdk: docker\napp_port: 8000\n")
    assert hub.files == gather(str(game), "me/game")


def test_a_token_that_will_not_do(game: Path, tmp_path: Path) -> None:
    with a_hub("another") as hub:
        environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
        done = push(str(game), "--to", "me/game", **environ)
    assert done.returncode == 3
    assert "Next: run `hf auth login`" in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [".env", "keys/server.pem", "id_rsa", ".netrc"])
def test_files_that_hold_secrets_do_not_go(name: str, game: Path) -> None:
    (game / name).parent.mkdir(exist_ok=True)
    (game / name).write_text("SECRET=1")
    with pytest.raises(ConfigurationError, match="may hold secrets"):
        gather(str(game), "me/game")


def test_a_dockerfile_of_its_own_is_taken_at_its_word() -> None:
    own = "FROM debian\nRUN true\n"
    assert dockerfile_for(own) == own
    assert readme_for("---\ntitle: X\n---\n", "Y") == "---\ntitle: X\n---\n"
