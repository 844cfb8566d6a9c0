"""A control plane that does not answer says nothing about the servers that it has started."""

import socket
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from envtorch.providers.cluster import Cluster
from envtorch.providers.docker import DockerServer
from envtorch.providers.kubernetes import ClusterServer
from envtorch.providers.manifests import KubernetesOptions
from envtorch.providers.provider_base import Phase

UNANSWERED = "does not answer"

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: away
clusters: [{{name: away, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: nobody, user: {{}}}}]
contexts: [{{name: away, context: {{cluster: away, user: nobody}}}}]
"""


@pytest.fixture
def dead_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_a_cluster_that_is_away_ends_no_server(tmp_path: Path, dead_port: int) -> None:
    (tmp_path / "config").write_text(KUBECONFIG.format(port=dead_port))
    cluster = Cluster(kubeconfig=str(tmp_path / "config"))
    try:
        server = ClusterServer(cluster, "default", "server", KubernetesOptions(), [])
        status = server.status()
        assert status.phase is Phase.RUNNING
        assert UNANSWERED in status.detail
        assert server.logs(10) == ""
    finally:
        cluster.close()


def test_an_engine_that_is_away_ends_no_server(dead_port: int) -> None:
    engine = docker.DockerClient(base_url=f"tcp://127.0.0.1:{dead_port}", version="1.41")
    try:
        status = DockerServer(
            Container({"Id": "abc"}, engine, engine.containers), "http://127.0.0.1:1"
        ).status()
        assert status.phase is Phase.RUNNING
        assert UNANSWERED in status.detail
    finally:
        engine.close()
