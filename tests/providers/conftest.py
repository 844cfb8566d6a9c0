"""Which engines there are to test with; a test for one that is missing is skipped with a sentence."""

import functools

import pytest

from envtorch.errors import EnvTorchError
from tests.providers.subjects import PYTHON_IMAGE


@functools.cache
def no_engine() -> str | None:
    """Why container tests cannot run here; None when they can."""
    try:
        from envtorch.providers.engine import connect, fetch_image

        client = connect()
        try:
            fetch_image(client, PYTHON_IMAGE, policy="missing", timeout_s=300)
        finally:
            client.close()
    except EnvTorchError as error:
        return error.message
    return None


@functools.cache
def is_podman() -> bool:
    """Whether the engine is Podman, which does a few things its own way."""
    from envtorch.providers.engine import connect

    client = connect()
    try:
        return any("Podman" in part["Name"] for part in client.version().get("Components", ()))
    finally:
        client.close()


@functools.cache
def no_cluster() -> str | None:
    """Why Kubernetes tests cannot run here; None when they can."""
    try:
        from envtorch.providers.cluster import Cluster, speaking_to_cluster

        cluster = Cluster()
        try:
            with speaking_to_cluster("asking for the pods"):
                cluster.pods(cluster.namespace, "app=none")
        finally:
            cluster.close()
    except EnvTorchError as error:
        return error.message
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: a module's image is not built where there is nothing to build it with."""
    if item.get_closest_marker("kubernetes") is not None:
        reason = no_cluster()
        if reason is not None:
            pytest.skip(f"Kubernetes tests need a cluster: {reason}")
    needs_engine = item.get_closest_marker("docker")
    if needs_engine is not None:
        reason = no_engine()
        if reason is not None:
            pytest.skip(f"container tests need an engine with {PYTHON_IMAGE}: {reason}")
        if "podman" in needs_engine.kwargs and is_podman():
            pytest.skip(f"on Podman: {needs_engine.kwargs['podman']}")
