"""Roots that are prepared once: by digest, by name, shared by sessions, removed when nobody has them."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from envtorch.errors import ConfigurationError
from envtorch.sandbox import Policy, Workspace
from envtorch.sandbox.prepared_roots import RootCache, name_for_dockerfile
from envtorch.sandbox.root_stores import close_root_stores
from tests.sandbox.roots import make_small_root, require_host_root


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RootCache:
    monkeypatch.setenv("ENVTORCH_CACHE", str(tmp_path / "cache"))
    return RootCache()


def packed(folder: Path) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(folder, arcname=".")
    stream.seek(0)
    return stream


def small(folder: Path, text: str = "bash") -> io.BytesIO:
    """An archive of what passes for a root, and is none."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin/bash").write_text(text)
    return packed(folder)


def trees(cache: RootCache) -> list[Path]:
    return sorted(cache._trees.iterdir())


def test_a_root_is_found_by_its_name_and_kept_by_its_digest(cache: RootCache, tmp_path: Path) -> None:
    assert cache.all() == []
    made = cache.add("registry.example:5000/a/b:1.0@x", small(tmp_path / "a"), source="a test", user="agent")
    assert cache.find(made.name) == made
    assert Path(cache.path(made), "bin/bash").read_text() == "bash"
    again = cache.add("second", small(tmp_path / "a"), source="a test")
    assert again.digest == made.digest
    assert [root.name for root in cache.all()] == [made.name, "second"]
    assert len(trees(cache)) == 1
    assert stat_bits(tmp_path / "cache/roots") == 0o700  # its programs may be set-user-id


def stat_bits(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_files_go_with_their_last_name(cache: RootCache, tmp_path: Path) -> None:
    for name in ("one", "two"):
        cache.add(name, small(tmp_path / "a"), source="a test")
    cache.remove("one")
    assert len(trees(cache)) == 1
    cache.remove("two")
    assert trees(cache) == []
    with pytest.raises(ConfigurationError, match="there is no prepared root 'two'"):
        cache.remove("two")


def test_a_name_that_is_given_anew_leaves_nothing_of_the_old_root(cache: RootCache, tmp_path: Path) -> None:
    cache.add("name", small(tmp_path / "a"), source="a test")
    made = cache.add("name", small(tmp_path / "b", "other"), source="a test")
    assert [path.name for path in trees(cache)] == [made.digest]


@pytest.mark.parametrize("name", ["host", "", "../x", "/abs", "a b", "a\0b", "-x", "x" * 201])
def test_a_name_that_could_be_anything_else_is_refused(cache: RootCache, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name"):
        cache.add(name, io.BytesIO(), source="a test")


def test_an_archive_that_is_refused_leaves_nothing(cache: RootCache, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no /bin/bash"):
        cache.add("name", packed(make_empty(tmp_path / "a")), source="a test")
    with pytest.raises(ConfigurationError, match="no archive"):
        cache.add("name", io.BytesIO(b"x" * 1000), source="a test")
    assert (trees(cache), cache.all()) == ([], [])


def make_empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_what_a_killed_preparation_left_is_removed_by_the_next(cache: RootCache, tmp_path: Path) -> None:
    cache.add("name", small(tmp_path / "a"), source="a test")
    abandoned = cache._trees / "partial-abandoned"
    (abandoned / "root").mkdir(parents=True)
    with cache._working_folder() as busy:
        cache.add("other", small(tmp_path / "b", "other"), source="a test")
        assert busy.exists()
    assert not abandoned.exists()
    assert not busy.exists()


def test_a_session_has_a_prepared_root_its_directory_and_variables(cache: RootCache, tmp_path: Path) -> None:
    require_host_root()
    root = make_small_root(make_empty(tmp_path / "small"))
    environment = {"GREETING": "hello"}
    cache.add("small:1", packed(root), source="a test", environment=environment, directory="/etc")
    policy = Policy(root="small:1", disk_bytes=16 << 20, open_files=256)
    try:
        with Workspace(policy) as workspace, Workspace(policy, directory="/tmp") as other:
            answer = workspace.run("pwd; echo $GREETING; cat motd; echo changed > motd")
            assert answer.output == "/etc\nhello\na small root\n"
            assert other.run("pwd; cat /etc/motd").output == "/tmp\na small root\n"
            assert workspace.store is other.store
            with pytest.raises(ConfigurationError, match="sessions are running"):
                cache.remove("small:1")
    finally:
        close_root_stores()
    cache.remove("small:1")
    assert trees(cache) == []


def test_a_dockerfile_is_named_after_everything_beside_it(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    first = name_for_dockerfile(tmp_path)
    assert first.startswith("dockerfile:")
    assert name_for_dockerfile(tmp_path) == first
    (tmp_path / "data").write_text("1")
    second = name_for_dockerfile(tmp_path)
    (tmp_path / "data").chmod(0o755)
    assert len({first, second, name_for_dockerfile(tmp_path)}) == 3


def envtorch(
    *arguments: str, cache: Path, stdin: bytes = b"", **variables: str
) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "envtorch.cli", *arguments]
    environment = {"PATH": os.environ["PATH"], "ENVTORCH_CACHE": str(cache), **variables}
    return subprocess.run(command, input=stdin, env=environment, capture_output=True, check=False)


def test_the_command_line_prepares_lists_and_removes(tmp_path: Path) -> None:
    file = tmp_path / "small.tar"
    file.write_bytes(small(tmp_path / "a").getvalue())
    made = envtorch("rootfs", "from-tar", str(file), "--name", "mine", cache=tmp_path / "c")
    assert (made.returncode, made.stdout) == (0, b"mine\n"), made.stderr
    listed = envtorch("rootfs", "list", cache=tmp_path / "c").stdout.decode()
    assert listed.split()[0] == "mine"
    assert "archive" in listed
    assert envtorch("rootfs", "list", "--json", cache=tmp_path / "c").stdout.startswith(b'[{"name": "mine"')
    assert envtorch("rootfs", "remove", "mine", cache=tmp_path / "c").returncode == 0
    assert b"no root has been prepared" in envtorch("rootfs", "list", cache=tmp_path / "c").stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["from-tar", "/no/such/file", "--name", "x"], 2, b"No such file"),
        (["from-tar", "/etc/passwd", "--name", "x"], 2, b"no archive"),
        (["from-image", "x"], 3, b"no container engine answers"),
        (["from-dockerfile", "/etc"], 2, b"no Dockerfile"),
        (["remove", "x"], 2, b"there is no prepared root"),
        (["debian", "--", "-evil"], 2, b"no name of a package"),
    ],
)
def test_what_cannot_be_prepared_is_told_in_a_sentence(
    tmp_path: Path, arguments: list[str], status: int, said: bytes
) -> None:
    done = envtorch("rootfs", *arguments, cache=tmp_path / "c", DOCKER_HOST="unix:///no/such/socket")
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can make a small disk"
)
def test_a_full_disk_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    disk = make_empty(tmp_path / "disk")
    file = tmp_path / "large.tar"
    file.write_bytes(small(tmp_path / "a", "x" * 4_000_000).getvalue())
    script = (
        'mount -t tmpfs -o size=1m none "$0" || exit 99\n'
        'ENVTORCH_CACHE="$0" "$1" -m envtorch.cli rootfs from-tar "$2" --name large; status=$?\n'
        'find "$0" -type f; exit $status'
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, str(disk), sys.executable, str(file)],
        capture_output=True,
        check=False,
    )
    if done.returncode == 99:
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 1, done.stderr
    assert b"is full" in done.stderr
    assert done.stdout == b""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_debian_is_made_without_an_engine(tmp_path: Path) -> None:
    """Marked slow: packages are fetched from the machine's mirror."""
    require_host_root()
    if shutil.which("mmdebstrap") is None:
        pytest.skip("there is no mmdebstrap: apt-get install mmdebstrap")
    began = time.monotonic()
    done = envtorch("rootfs", "debian", "git", cache=tmp_path / "c", HOME=str(tmp_path))
    if b"failed with status" in done.stderr and b"not resolve" in done.stderr:
        pytest.skip("this machine reaches no mirror")
    assert done.returncode == 0, done.stderr[-2000:]
    print(f"a minimal Debian with git in {time.monotonic() - began:.0f} s")
    (tmp_path / "c2").mkdir()
    script = (
        "from envtorch.sandbox import Policy, Workspace\n"
        "with Workspace(Policy(root='debian', disk_bytes=64 << 20, open_files=1024)) as workspace:\n"
        "    print(workspace.run('git --version; dpkg -s git | grep ^Status').output)\n"
    )
    environment = {"PATH": os.environ["PATH"], "ENVTORCH_CACHE": str(tmp_path / "c")}
    seen = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert "install ok installed" in seen.stdout, seen.stderr
