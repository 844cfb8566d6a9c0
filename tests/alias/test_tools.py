"""`openenv.core.tools`: Python in a sandbox, and repositories of a real git server's kind."""

import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envtorch.compat.tools import GitServerClient, PyExecutor
from tests.support import PATIENCE_S

USER, PASSWORD = "gitea", "secret"


def test_python_keeps_its_names_and_tells_its_errors() -> None:
    executor = PyExecutor(["math", "no_such_module", "numpy.*"])
    try:
        first = executor.run("x = math.floor(3.7)\nprint('printed')\nx * 2")
        assert (first.stdout.split(), first.stderr, first.exit_code) == (["printed", "6"], "", 0)
        assert executor.run("safe_json_dumps({'x': x, 'o': int})").exit_code == 0
        failed = executor.run("def f():\n    return 1 / 0\nf()")
        assert failed.exit_code == 1
        assert "ZeroDivisionError: division by zero" in failed.stderr
        assert executor.run("raise SystemExit(3)").exit_code == 3
        assert executor.run("print(x)").stdout.strip() == "3"
        assert executor.run("open('/etc/shadow').read()").exit_code == 1
    finally:
        executor.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server with one repository, which is shown only to who knows the password."""
    repositories = tmp_path / "repositories"
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "--quiet", "--initial-branch", "main")
    for number, text in enumerate(("one", "two")):
        (work / "file").write_text(text)
        git(work, "add", ".")
        git(work, "commit", "--quiet", "-m", text)
        git(work, "tag", f"v{number}")
    bare = repositories / USER / "project.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(work), str(bare))
    git(bare, "update-server-info")
    expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Gitea(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].strip("/")
            if path == "":
                self.say(200, b"gitea")
            elif self.headers.get("Authorization") != expected:
                self.say(401, b"")
            elif path == "api/v1/user/repos":
                row = {"name": "project", "full_name": "gitea/project", "clone_url": "", "description": None}
                self.say(200, json.dumps([row]).encode())
            else:
                found = repositories / path
                self.say(200, found.read_bytes()) if found.is_file() else self.say(404, b"")

        def say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Gitea) as gitea:
        thread = threading.Thread(target=gitea.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{gitea.server_address[1]}"
        gitea.shutdown()
        thread.join()


def git(place: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=place, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_repository_is_cloned_worked_on_and_put_back(server: str, tmp_path: Path) -> None:
    home = dict(os.environ)
    client = GitServerClient(server, USER, PASSWORD, workspace_dir=str(tmp_path / "space"))
    with pytest.raises(RuntimeError, match="not ready"):
        client.list_repositories()
    assert client.wait_for_ready(timeout=PATIENCE_S)
    assert [repo["full_name"] for repo in client.list_repositories()] == ["gitea/project"]
    place = Path(client.clone_to_workspace("project", commit="v0"))
    assert (place / "file").read_text() == "one"
    first = client.get_current_commit("project")
    (place / "file").write_text("changed")
    (place / "new").touch()
    assert client.execute_git_command("commit -am 'work'", "project")[0] == 0
    assert client.reset_workspace("project", commit="main")
    assert (place / "file").read_text() == "two"
    assert not (place / "new").exists()
    assert client.reset_workspace("project", commit="v0")
    assert client.get_current_commit("project") == first
    assert client.workspace_exists("project")
    assert not client.workspace_exists("other")
    code, _, error = client.execute_git_command("status", "../..")
    assert (code, "outside of the workspace" in error) == (1, True)
    assert client.execute_git_command("status", "nowhere")[0] == 1
    assert dict(os.environ) == home


def test_a_wrong_password_and_a_server_that_is_not_there_are_told(server: str, tmp_path: Path) -> None:
    client = GitServerClient(server, USER, "wrong", workspace_dir=str(tmp_path / "space"))
    client.wait_for_ready(timeout=PATIENCE_S)
    assert client.list_repositories() == []
    with pytest.raises(RuntimeError, match="Clone failed"):
        client.clone_to_workspace("project")
    assert not GitServerClient("http://127.0.0.1:9", USER, PASSWORD, str(tmp_path)).wait_for_ready(
        timeout=0.3
    )
