"""Nodes of Ray that come and go: a head and workers, each with an address of its own on this machine."""

import itertools
import os
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support import eventually

STORE_BYTES = 80 * 2**20
ATTEMPTS = 10


class Nodes:
    """A head, on which no server is placed, and worker nodes with room for one server each."""

    def __init__(self, count: int) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # A node of a busy machine may answer late; one that was killed refuses at once.
        os.environ["RAY_health_check_timeout_ms"] = "60000"  # noqa: SIM112, Ray's own spelling
        import ray
        from ray.cluster_utils import Cluster

        self._ray = ray
        # Ray rewrites 127.0.0.1, so that nodes there do not find each other.
        self._hosts = (f"127.0.0.{number}" for number in itertools.count(3))
        self._cluster: Any = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "node_ip_address": "127.0.0.2",
                "object_store_memory": STORE_BYTES,
                "include_dashboard": False,
            },
        )
        self._workers: dict[str, Any] = {}
        for _ in range(count):
            self.add()
        ray.init(address=self.address, _node_ip_address="127.0.0.2", log_to_driver=False)
        self._cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        address: str = self._cluster.address
        return address

    @property
    def hosts(self) -> list[str]:
        """The addresses of the worker nodes, the oldest first."""
        return list(self._workers)

    def add(self) -> str:
        """A new worker node; its address. To be called on the main thread, as Ray sets signal handlers."""
        for attempt in range(ATTEMPTS):
            host = next(self._hosts)
            try:
                node = self._cluster.add_node(
                    num_cpus=2,
                    node_ip_address=host,
                    object_store_memory=STORE_BYTES,
                    resources={"server": 1},
                )
            except Exception as error:  # Ray gives a node 30 s to start, which a busy machine may not keep
                if attempt == ATTEMPTS - 1 or "timed out during startup" not in str(error):
                    raise
                continue
            self._workers[host] = node
            break
        return host

    def kill(self, host: str) -> None:
        """End a node as a machine dies: nothing on it is told."""
        self._cluster.remove_node(self._workers.pop(host), allow_graceful=False)

    @staticmethod
    def host_of(url: str) -> str:
        found = urlsplit(url).hostname
        assert found is not None
        return found

    def require_nothing_left(self) -> None:
        """Every resource is free, and there is no placement group."""

        def all_free() -> bool:
            free, there = self._ray.available_resources(), self._ray.cluster_resources()
            return all(free.get(name) == there[name] for name in ("CPU", "server"))

        eventually(all_free, "the cluster's resources are all free again")
        assert not self._ray.util.placement_group_table()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()
        self._cluster.shutdown()
