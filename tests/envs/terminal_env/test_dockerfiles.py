"""Dockerfiles of tasks: what their instructions do, and what is refused."""

import io
import tarfile
from pathlib import Path

import pytest

from envtorch.envs.terminal_env.dockerfiles import base_of, environment_of, read_dockerfile
from envtorch.envs.terminal_env.episode_tasks import EpisodeTask
from envtorch.envs.terminal_env.harbor import load_task
from envtorch.errors import ConfigurationError, EnvironmentFailed
from envtorch.sandbox.prepared_roots import RootCache, name_for_dockerfile
from envtorch.sandbox.root_stores import close_root_stores
from tests.sandbox.roots import HOST, make_small_root, require_host_root


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("FROM debian:12", "debian:12"),
        ("FROM --platform=linux/amd64 debian:12 AS base\nRUN true", "debian:12"),
        ("ARG BASE=python\nARG TAG\nFROM ${BASE}:${TAG:-3.11}", "python:3.11"),
        ("RUN true", None),
    ],
)
def test_the_base_is_what_from_names(text: str, base: str | None) -> None:
    assert base_of(text, "Dockerfile") == base


def test_variables_are_those_of_the_image_the_file_starts_from() -> None:
    found = read_dockerfile(
        "FROM x\nENV PATH=/opt/bin:$PATH\nENV PATH=$PATH:/last\nARG PATH=ignored\nWORKDIR $PATH",
        "f",
        environment={"PATH": "/bin"},
    )
    assert environment_of(found[2]) == {"PATH": "/opt/bin:/bin:/last"}
    assert found[4].words == ("/opt/bin:/bin:/last",)


@pytest.mark.parametrize(
    "line",
    [
        "FROM y",
        "COPY --from=build a b",
        "RUN <<E\ntrue\nE",
        "RUN --mount=type=secret,id=k true",
        "RUN --mount=type=bind,target=/x true",
        "ADD https://example.org/x /x",
        "ADD files.tar.gz /x",
        "ONBUILD RUN true",
    ],
)
def test_what_only_an_engine_can_do_is_refused_with_the_line_and_the_command(line: str) -> None:
    with pytest.raises(ConfigurationError, match=r"line 2: .*envtorch rootfs from-dockerfile"):
        read_dockerfile(f"FROM x\n{line}", "Dockerfile")


@pytest.mark.parametrize("line", ["RUN", "USER", "COPY a", 'SHELL "x', "WORKDIR", "COPY [1, 2]"])
def test_what_is_malformed_is_refused_with_the_line(line: str) -> None:
    with pytest.raises(ConfigurationError, match="line 2"):
        read_dockerfile(f"FROM x\n{line}", "Dockerfile")


def make_task(folder: Path, dockerfile: str, **files: str) -> Path:
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "task.toml").write_text('version = "1.0"\n')
    (folder / "instruction.md").write_text("Nothing is to be done.\n")
    (folder / "tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (folder / "environment/Dockerfile").write_text(dockerfile)
    for name, text in files.items():
        (folder / "environment" / name).write_text(text)
    return folder


DOCKERFILE = """\
FROM debian:12
ARG WHO=builder
ENV PLACE=/shop GREETING="good day" PATH=/shop/bin:$PATH
WORKDIR $PLACE
RUN false; true
RUN echo "$WHO in $(pwd) as $(id -un)" > built
RUN ["sh", "-c", "echo exec > executed"]
COPY data kept/
COPY --chown=daemon:games --chmod=640 data owned
SHELL ["/bin/bash", "-c"]
RUN [[ bash == ba* ]] && mkdir open && chmod 777 open
USER nobody
RUN id -un > open/user; ! touch /etc/not-allowed 2>/dev/null
COPY data roots
"""


def test_steps_are_followed_as_an_engine_follows_them(tmp_path: Path) -> None:
    require_host_root()
    task = load_task(make_task(tmp_path / "task", DOCKERFILE, data="text"))
    episode = EpisodeTask.of(task, HOST)
    with episode.open() as workspace:
        seen = workspace.run(
            "id -un; pwd; echo $GREETING; echo ${WHO-unset}; echo $PATH | cut -d: -f1;"
            "cat built executed kept/data open/user"
        )
        assert seen.output.splitlines() == [
            *["nobody", "/shop", "good day", "unset", "/shop/bin"],
            *["builder in /shop as root", "exec", "textnobody"],
        ]
        modes = workspace.run("stat -c '%U:%G %a' owned; stat -c %U roots").output
        assert modes == "daemon:games 640\nroot\n"
        assert episode.grade(workspace).reward == 1.0


def test_a_daemon_that_a_step_leaves_is_ended_with_it(tmp_path: Path) -> None:
    require_host_root()
    steps = """\
FROM debian:12
RUN sleep 300 > /var/log/open 2>&1 & echo $! > /daemon
RUN ! kill -0 $(cat /daemon) && echo ended > /seen
"""
    episode = EpisodeTask.of(load_task(make_task(tmp_path / "task", steps)), HOST)
    with episode.open() as workspace:
        assert workspace.run("cat /seen").output == "ended\n"


def test_a_user_that_the_root_does_not_have_is_told(tmp_path: Path) -> None:
    require_host_root()
    task = load_task(make_task(tmp_path / "task", "FROM x\nUSER nobody-here\nRUN true"))
    with pytest.raises(EnvironmentFailed, match="no user 'nobody-here'"):
        EpisodeTask.of(task, HOST)


def test_a_prepared_root_is_used_before_the_policys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name in FROM, steps run on it; prepared from the Dockerfile itself, no step is left."""
    require_host_root()
    monkeypatch.setenv("ENVTORCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "root").mkdir()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(make_small_root(tmp_path / "root"), arcname=".")
    cache = RootCache()
    folder = make_task(
        tmp_path / "task", 'FROM little:1\nENV B=$A-step\nSHELL ["/bin/bash", "-c"]\nRUN touch /step'
    )
    try:
        stream.seek(0)
        cache.add("little:1", stream, source="a test", environment={"A": "image"})
        with EpisodeTask.of(load_task(folder), HOST).open() as workspace:
            assert workspace.run("cat /etc/motd; find /step; echo $A $B").output == (
                "a small root\n/step\nimage image-step\n"
            )
        stream.seek(0)
        cache.add(name_for_dockerfile(folder / "environment"), stream, source="a test", directory="/etc")
        with EpisodeTask.of(load_task(folder), HOST).open() as workspace:
            assert workspace.run("pwd; find /step 2>/dev/null; cat motd").output == "/etc\na small root\n"
    finally:
        close_root_stores()
