"""What `envtorch proxy-config` takes, and that the proxies take what it prints."""

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envtorch.cli import main
from envtorch.errors import ConfigurationError
from envtorch.settings import Settings

KINDS = ["nginx", "haproxy"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["apache", "a=h:1"], "there are nginx, haproxy"),
        (["nginx", "a"], "web-1=10.0.0.7:8000"),
        (["nginx", "a=h"], "web-1=10.0.0.7:8000"),
        (["nginx", "a~b=h:1"], "cannot be a replica's name"),
        (["haproxy", "a=h:1", "a=h:2"], "the same name"),
        (["nginx", "Web=h:1", "web=h:2"], "upper and lower case only"),
        (["nginx", "web-1=8001"], "has no host and port"),
        (["nginx", "a=:8001"], "is no host"),
        (["nginx", "a=127.0.0.1;evil:80"], "is no host"),
        (["haproxy", "a=two words:80"], "is no host"),
        (["haproxy", "a=h\n:80"], "is no host"),
        (["nginx", "a=http://x:80"], "has a URL"),
        (["nginx", "a=::1:80"], "IPv6 address without brackets"),
        (["nginx", "a=[nonsense]:80"], "is no host"),
        (["nginx", "a=[fe80::1%eth0]:80"], "is no host"),
        (["nginx", "a=127.0.0.999:80"], "is no host"),
        (["nginx", "a=127.0.0.1:８０"], "is no port"),
        (["nginx", "a=127.0.0.1:99999"], "is no port"),
        (["nginx", "a=127.0.0.1:0"], "is no port"),
        (["nginx", "a=h:1", "--listen", "1.2.3.4;x:80"], "is no host"),
        (["haproxy", "a=h:1", "--listen", "port"], "is no port"),
        (["haproxy", "a=h:1", "--listen", "http://x:80"], "has a URL"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_configured_is_refused_in_a_sentence(arguments: list[str], said: str) -> None:
    refused = CliRunner().invoke(main, ["proxy-config", *arguments])
    assert refused.exit_code == 2, refused.output
    assert said in " ".join(refused.output.split()), refused.output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listen", ["8080", "*:8080", "127.0.0.1:8080", "[::1]:8080", "localhost:8080"])
def test_the_proxy_accepts_every_file_that_is_printed(kind: str, listen: str, tmp_path: Path) -> None:
    accepts(kind, ["web-1=127.0.0.1:8001", "b.2=[::1]:8002", "C=localhost:8003"], listen, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_proxy_accepts_a_file_with_many_replicas(kind: str, tmp_path: Path) -> None:
    many = [f"environment-of-the-fleet-{n}=127.0.0.1:{8001 + n}" for n in range(200)]
    accepts(kind, many, "127.0.0.1:8080", tmp_path)


def accepts(kind: str, replicas: list[str], listen: str, tmp_path: Path) -> None:
    printed = CliRunner().invoke(main, ["proxy-config", kind, *replicas, "--listen", listen])
    assert printed.exit_code == 0, printed.output
    path = tmp_path / "proxy.conf"
    path.write_text(printed.output)
    binary = shutil.which(kind) or shutil.which(f"/usr/sbin/{kind}")
    if binary is None:
        pytest.skip(f"{kind} is not installed: apt-get install {kind}")
    own = f"pid {tmp_path}/nginx.pid; error_log stderr;"
    check = {
        "nginx": [binary, "-t", "-p", str(tmp_path), "-c", str(path), "-g", own],
        "haproxy": [binary, "-c", "-f", str(path)],
    }
    checked = subprocess.run(check[kind], capture_output=True, text=True, check=False)
    said = checked.stderr
    assert checked.returncode == 0 or "Address already in use" in said or "Cannot assign" in said, said


def test_nginx_refuses_bodies_at_the_limit_of_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVTORCH_MAX_MESSAGE_BYTES", "12345")
    printed = CliRunner().invoke(main, ["proxy-config", "nginx", "a=127.0.0.1:1"])
    assert "client_max_body_size 12345;" in printed.output


def test_a_server_with_an_impossible_name_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match="ENVTORCH_REPLICA"):
        Settings.from_environ({"ENVTORCH_REPLICA": "a~b"})
