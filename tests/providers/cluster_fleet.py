"""A fleet of dice servers in a real cluster, made of rendered manifests, and episodes played on it."""

import asyncio
import random
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

from envtorch.errors import EnvTorchError
from envtorch.pool.outcomes import is_infrastructure
from envtorch.providers.build import build_base, build_environment
from envtorch.providers.cluster import Cluster
from envtorch.providers.engine import connect
from envtorch.providers.fleet_manifests import fleet_manifests
from envtorch.providers.fleet_options import FleetOptions
from tests.recovery.dice import DiceEnv, Roll, rolls_of
from tests.support import PATIENCE_S, eventually

IMAGE = "envtorch-test-dice:1"
DOCKERFILE = """\
ARG BASE=envtorch-base:latest
FROM ${BASE}
COPY dice.py .
CMD ["envtorch", "serve", "dice:app", "--host", "0.0.0.0", "--port", "8000"]
"""


def build_dice() -> None:
    """The image, from the sources that are under test; what did not change comes from the engine's cache."""
    build_base()
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(Path(__file__).parents[1] / "recovery" / "dice.py", directory)
        (Path(directory) / "Dockerfile").write_text(DOCKERFILE)
        build_environment(directory, IMAGE)


class Fleet:
    """The pods of one fleet, as a name server would know them."""

    def __init__(self, cluster: Cluster, options: FleetOptions) -> None:
        self._cluster = cluster
        self.options = options
        self.namespace = cluster.namespace
        self._api: Any = client.ApiClient(cluster._configuration)
        self.apps: Any = client.AppsV1Api(self._api)
        self.core: Any = client.CoreV1Api(self._api)
        self.networking: Any = client.NetworkingV1Api(self._api)

    def pods(self) -> list[Any]:
        return list(self._cluster.pods(self.namespace, f"app.kubernetes.io/instance={self.options.name}"))

    def ready(self) -> dict[str, str]:
        """The addresses of pods that are ready and were not told to end, by the pods' unique ids."""
        return {
            pod.metadata.uid: f"http://{pod.status.pod_ip}:{self.options.port}"
            for pod in self.pods()
            if pod.metadata.deletion_timestamp is None
            and any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())
        }

    def restart(self) -> None:
        """Replace every pod, as an update of the image does."""
        template = {"metadata": {"annotations": {"restarted": secrets.token_hex(4)}}}
        patch = {"spec": {"template": template}}
        self.apps.patch_namespaced_stateful_set(self.options.name, self.namespace, patch)

    def kill(self, uid: str) -> None:
        """Kill a pod's server, without a word; the kubelet starts it again."""
        engine = connect()
        try:
            labels = [f"io.kubernetes.pod.uid={uid}", "io.kubernetes.container.name=server"]
            for container in engine.containers.list(filters={"label": labels}):
                container.kill("SIGKILL")
        finally:
            engine.close()

    def restarts(self) -> int:
        """How many servers were started again, and are ready."""
        statuses = (status for pod in self.pods() for status in pod.status.container_statuses or ())
        return sum(status.restart_count for status in statuses if status.ready)

    def end(self, uid: str) -> None:
        """Remove a pod without its time to finish."""
        (name,) = [pod.metadata.name for pod in self.pods() if pod.metadata.uid == uid]
        self.core.delete_namespaced_pod(
            name, self.namespace, grace_period_seconds=0, _preload_content=False
        ).release_conn()

    def run_inside(self, *command: str) -> str:
        """What a command prints that runs in one of the pods."""
        api: Any = client.ApiClient(self._cluster._configuration)
        name = self.pods()[0].metadata.name
        ask = client.CoreV1Api(api).connect_get_namespaced_pod_exec
        try:
            options = {"stdout": True, "stderr": False, "_preload_content": False}
            running: Any = stream(ask, name, self.namespace, command=list(command), **options)
            try:
                running.run_forever(timeout=PATIENCE_S)
                return str(running.read_all())
            finally:
                running.sock.shutdown()  # `close` leaves a socket open that the other side has closed first
        finally:
            api.close()

    def apply(self) -> None:
        """Make what a cluster of version 1.20 knows: budgets and autoscalers came into their own later."""
        make = {
            "Service": self.core.create_namespaced_service,
            "NetworkPolicy": self.networking.create_namespaced_network_policy,
            "StatefulSet": self.apps.create_namespaced_stateful_set,
        }
        for manifest in fleet_manifests(self.options):
            if manifest["kind"] in make:
                make[manifest["kind"]](self.namespace, manifest, _preload_content=False).release_conn()

    def remove(self) -> None:
        remove = (
            self.apps.delete_namespaced_stateful_set,
            self.core.delete_namespaced_service,
            self.networking.delete_namespaced_network_policy,
        )
        for delete in remove:
            with suppress(ApiException):
                delete(self.options.name, self.namespace, _preload_content=False).release_conn()
        for pod in self.pods():
            with suppress(ApiException):
                self.end(pod.metadata.uid)
        eventually(lambda: not self.pods(), "no pod is left", PATIENCE_S)
        self._api.close()


@contextmanager
def fleet(**options: Any) -> Iterator[Fleet]:
    """A fleet whose pods are all ready."""
    cluster = Cluster()
    name = f"dice-{secrets.token_hex(3)}"
    made = Fleet(cluster, FleetOptions(image=IMAGE, name=name, cpus=0.05, memory="192Mi", **options))
    try:
        made.apply()
        eventually(lambda: len(made.ready()) == made.options.replicas, "all are ready", 4 * PATIENCE_S)
        yield made
    finally:
        made.remove()
        cluster.close()


class ReadyPods:
    """Where a session may be recovered: on any pod that is ready."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def next_address(self, timeout_s: float) -> str:
        return random.choice(list(self._fleet.ready().values()))

    async def next_address_async(self, timeout_s: float) -> str:
        return await asyncio.to_thread(self.next_address, timeout_s)

    def for_copy(self) -> "ReadyPods":
        return self

    def release(self) -> None: ...


@dataclass
class Played:
    """What became of the episodes."""

    finished: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Not begun, as the server they asked was going or gone; begun elsewhere."""
    lost: Counter[str] = field(default_factory=Counter)
    """Begun, and not ended."""

    def __str__(self) -> str:
        return f"{self.finished} finished, refused {dict(self.refused)}, lost {dict(self.lost)}"


class Load:
    """Players who play episode after episode, until they are told to stop."""

    def __init__(self, fleet: Fleet, *, players: int, steps: int, pause_s: float, **client: Any) -> None:
        self.played = Played()
        self.stopping = asyncio.Event()
        self._fleet, self._client = fleet, client
        self._steps, self._pause_s = steps, pause_s
        self._addresses: dict[str, str] = {}
        self._tasks = [asyncio.create_task(self._play(number)) for number in range(players)]
        self._tasks.append(asyncio.create_task(self._look()))

    async def stop(self) -> Played:
        self.stopping.set()
        await asyncio.gather(*self._tasks)
        return self.played

    async def _look(self) -> None:
        while not self.stopping.is_set():
            self._addresses = await asyncio.to_thread(self._fleet.ready)
            await asyncio.sleep(0.2)

    async def _play(self, number: int) -> None:
        seed = number
        while not self.stopping.is_set():
            seed += 1000
            if not self._addresses:
                await asyncio.sleep(0.1)
                continue
            url = random.choice(list(self._addresses.values()))
            await self._episode(url, seed)

    async def _episode(self, url: str, seed: int) -> None:
        has_begun = False
        try:
            async with DiceEnv.aio(url, **self._client) as env:
                await env.reset(seed=seed, episode_id=str(seed))
                has_begun = True
                for n in range(1, self._steps + 1):
                    assert (await env.step(Roll())).observation.rolls == rolls_of(seed, n)
                    await asyncio.sleep(self._pause_s)
        except EnvTorchError as error:
            assert is_infrastructure(error), error
            counter = self.played.lost if has_begun else self.played.refused
            counter[type(error).__name__] += 1
        else:
            self.played.finished += 1
