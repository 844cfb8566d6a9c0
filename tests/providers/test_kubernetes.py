"""A real cluster: replicas, sentences, and what is left behind."""

import time
from collections.abc import Iterator

import pytest

from envtorch.errors import ConfigurationError, EngineUnavailable, NotReady
from envtorch.providers.cluster import Cluster
from envtorch.providers.kubernetes import KubernetesProvider, sweep_namespace
from envtorch.providers.manifests import KubernetesOptions, render
from envtorch.providers.ownership import OwnerTag
from envtorch.testing import PROBE_COMMAND
from envtorch.testing.provider import Probe
from tests.providers.subjects import PYTHON_IMAGE
from tests.support import PATIENCE_S, eventually

needs_cluster = pytest.mark.kubernetes


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.close()


@needs_cluster
def test_connections_go_to_each_replica_in_turn() -> None:
    with KubernetesProvider() as provider:
        url = provider.start_container(
            PYTHON_IMAGE, command=PROBE_COMMAND, pull="never", kind="deployment", replicas=2
        )
        provider.wait_for_ready(url, timeout_s=PATIENCE_S)
        names: set[str] = set()

        def both() -> bool:
            names.add(Probe(provider, url).get("/environ/HOSTNAME").text)
            return len(names) == 2

        eventually(both, "both replicas answered", PATIENCE_S)


@needs_cluster
def test_a_pod_that_fits_nowhere_is_told_with_the_schedulers_reason() -> None:
    with KubernetesProvider() as provider:
        url = provider.start_container(PYTHON_IMAGE, pull="never", cpus=999.0)
        with pytest.raises(NotReady, match=r"Insufficient cpu") as caught:
            provider.wait_for_ready(url, timeout_s=PATIENCE_S)
    assert "FailedScheduling" in caught.value.logs


@needs_cluster
def test_a_pod_that_needs_too_much_memory_is_told() -> None:
    with KubernetesProvider() as provider:
        hungry = ["python3", "-c", "x = bytearray(300 * 1024 * 1024)"]
        url = provider.start_container(PYTHON_IMAGE, command=hungry, pull="never", memory="32Mi")
        with pytest.raises(Exception, match="out of memory"):
            provider.wait_for_ready(url, timeout_s=PATIENCE_S)


@needs_cluster
def test_what_the_cluster_does_not_accept_is_told_and_nothing_is_left(cluster: Cluster) -> None:
    with KubernetesProvider() as provider:
        with pytest.raises(ConfigurationError, match="does not accept it"):
            provider.start_container(PYTHON_IMAGE, labels={"not a label": "x"})
        with pytest.raises(Exception, match="not found"):
            provider.start_container(PYTHON_IMAGE, namespace="there-is-no-such-namespace")


@needs_cluster
def test_a_sweep_removes_the_dead_and_the_expired_and_spares_the_living(cluster: Cluster) -> None:
    here = OwnerTag.current()
    dead = OwnerTag(here.host, here.pid, started="1")
    options = KubernetesOptions(command=PROBE_COMMAND, pull="never", ttl_s=3600.0)
    made = {"envtorch-test-dead": dead, "envtorch-test-living": here}
    for name, owner in made.items():
        for manifest in render(PYTHON_IMAGE, options, name=name, owner=str(owner), now=time.time()):
            cluster.create(manifest, cluster.namespace)
    swept = {(thing.kind, thing.name) for thing in sweep_namespace(cluster, cluster.namespace)}
    assert ("pod", "envtorch-test-living") not in swept
    eventually(lambda: not _pods(cluster, "envtorch-test-dead"), "the dead one's pod is gone", PATIENCE_S)
    assert _pods(cluster, "envtorch-test-living")
    later = sweep_namespace(cluster, cluster.namespace, now=time.time() + 7200.0)
    assert ("pod", "envtorch-test-living") in {(thing.kind, thing.name) for thing in later}
    eventually(lambda: not _pods(cluster, "envtorch-test-living"), "the expired pod is gone", PATIENCE_S)


def _pods(cluster: Cluster, name: str) -> int:
    return len(cluster.pods(cluster.namespace, f"envtorch.server={name}"))


def test_without_a_cluster_one_sentence_says_so(tmp_path: object) -> None:
    with pytest.raises(EngineUnavailable, match="no Kubernetes cluster is configured"):
        KubernetesProvider(kubeconfig=f"{tmp_path}/nothing")
