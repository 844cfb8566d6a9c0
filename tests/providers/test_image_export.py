"""Roots out of a real engine: an image as it is, and one built from a Dockerfile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.errors import ImageUnavailable, ProviderFailed
from envtorch.providers.image_export import build_dockerfile, export_image
from envtorch.sandbox import Policy, Workspace
from envtorch.sandbox.prepared_roots import RootCache
from envtorch.sandbox.root_stores import close_root_stores
from tests.providers.subjects import PYTHON_IMAGE
from tests.sandbox.roots import require_host_root

pytestmark = [pytest.mark.docker, pytest.mark.slow]

DOCKERFILE = f"""\
FROM {PYTHON_IMAGE} AS first
RUN echo made by an engine > /made
FROM {PYTHON_IMAGE}
COPY --from=first /made /srv/made
COPY program.py /srv/
RUN echo 'agent:x:1000:1000::/home/agent:/bin/bash' >> /etc/passwd
RUN mkdir -p /home/agent && chown 1000:1000 /home/agent
ENV GREETING="good day"
WORKDIR /srv
USER agent
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVTORCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepare(*arguments: str) -> str:
    command = [sys.executable, "-m", "envtorch.cli", "rootfs", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_session_runs_on_an_image_of_the_engine() -> None:
    require_host_root()
    name = prepare("from-image", PYTHON_IMAGE)
    assert name == PYTHON_IMAGE
    try:
        with Workspace(Policy(root=name, disk_bytes=64 << 20, open_files=1024)) as workspace:
            answer = workspace.run("python3 -c 'import json; print(json.dumps(1))'; ls -d /.dockerenv")
            assert answer.output.startswith("1\n")
            assert answer.exit_code != 0
            (copy,) = workspace.fork()
            copy.close()
    finally:
        close_root_stores()


def test_a_dockerfile_of_several_stages_with_a_user_becomes_a_root(tmp_path: Path) -> None:
    require_host_root()
    context = tmp_path / "environment"
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE)
    (context / "program.py").write_text("print('runs')\n")
    name = prepare("from-dockerfile", str(context))
    assert RootCache().find(name) is not None
    try:
        with Workspace(Policy(root=name, disk_bytes=64 << 20, open_files=1024)) as workspace:
            answer = workspace.run(
                "id -u; pwd; echo $GREETING; cat made; python3 program.py; touch x; touch ~/x && echo mine"
            )
            lines = answer.output.splitlines()
            assert lines[:5] == ["1000", "/srv", "good day", "made by an engine", "runs"]
            assert "Permission denied" in lines[5]
            assert lines[6] == "mine"
    finally:
        close_root_stores()


def test_an_image_that_is_not_there_and_a_build_that_fails_are_told(tmp_path: Path) -> None:
    with pytest.raises(ImageUnavailable, match="no image"), export_image("no-such-image:1", pull="never"):
        pass
    (tmp_path / "Dockerfile").write_text(f"FROM {PYTHON_IMAGE}\nRUN echo said before; exit 3\n")
    with pytest.raises(ProviderFailed, match="failed") as failure:
        build_dockerfile(tmp_path, "envtorch-root:failing")
    assert "said before" in failure.value.details["logs"]
