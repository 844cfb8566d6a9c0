"""Servers in a Kubernetes cluster."""

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from envtorch.errors import ConfigurationError, ImageUnavailable, NotReady, ProviderFailed
from envtorch.providers.cluster import Cluster, ForwardStream, speaking_to_cluster
from envtorch.providers.manifests import (
    EXPIRES,
    SERVER_LABEL,
    KubernetesOptions,
    Manifest,
    render,
    server_name,
)
from envtorch.providers.ownership import OWNER_LABEL, OwnerTag
from envtorch.providers.provider_base import ContainerProvider, Phase, Status
from envtorch.providers.provider_options import checked_environment, checked_port, read_options
from envtorch.providers.ready import exited
from envtorch.providers.sweeper import Swept, attempt, is_orphan
from envtorch.providers.tunnel import Tunnel

# `cluster`, imported above, tells in one sentence if the package is missing.
import urllib3  # isort: skip
from kubernetes import watch  # isort: skip
from kubernetes.client.exceptions import ApiException  # isort: skip

__all__ = ["KubernetesProvider", "sweep_cluster"]

NO_IMAGE = ("ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName", "ImageInspectError")
"""Why a container waits for an image that will not come by itself."""

UNANSWERED = (ApiException, urllib3.exceptions.HTTPError, OSError)
"""What a question raises that the cluster does not answer, or not with what was asked for."""

GONE_TIMEOUT_S = 60.0

logger = logging.getLogger(__name__)


class KubernetesProvider(ContainerProvider):
    """Runs an image in a cluster, as a pod or as a deployment, with a headless Service.

    Inside the cluster the address is the Service's name; from outside, a port of this machine is
    forwarded, and each new connection goes to the next replica. Everything carries its owner's label,
    and a start removes what belongs to the dead or has outlived its `ttl_s`.
    """

    def __init__(self, *, kubeconfig: str | None = None, context: str | None = None) -> None:
        super().__init__()
        self._cluster = Cluster(kubeconfig=kubeconfig, context=context)
        # A provider that is forgotten stops its server, which was adopted later, and then hangs up.
        weakref.finalize(self, self._cluster.close)

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        chosen = read_options(KubernetesOptions, options)
        port, environment = checked_port(port), checked_environment(env_vars)
        self._refuse_second()
        namespace = chosen.namespace or self._cluster.namespace
        sweep_namespace(self._cluster, namespace)
        name, owner = server_name(image), str(OwnerTag.current())
        manifests = render(image, chosen, name=name, owner=owner, env_vars=environment, now=time.time())
        server = ClusterServer(self._cluster, namespace, name, chosen, manifests)
        try:
            server.open_route(port)
            for manifest in manifests:
                self._cluster.create(manifest, namespace)
        except BaseException:
            server.stop()
            raise
        return self._adopt(server)

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Return when the server is healthy. What keeps the cluster from running it is in the error."""
        deadline = time.monotonic() + timeout_s
        server = self._server
        if isinstance(server, ClusterServer):
            server.wait_until_running(timeout_s)
            if self._server is not server:
                raise ProviderFailed("the server was stopped while it was waited for")
        super().wait_for_ready(base_url, max(deadline - time.monotonic(), 0.01))

    def close(self) -> None:
        super().close()
        self._cluster.close()


class ClusterServer:
    """The pods of one server, and the way to them."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        options: KubernetesOptions,
        manifests: list[Manifest],
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._options = options
        self._manifests = manifests
        self._selector = f"{SERVER_LABEL}={name}"
        self._turn = itertools.count()
        self._tunnel: Tunnel | None = None
        self._stopping = threading.Lock()
        self._stopped = False

    @property
    def base_url(self) -> str:
        if self._tunnel is not None:
            return self._tunnel.base_url
        return f"http://{self._name}.{self._namespace}.svc:{self._options.container_port}"

    def open_route(self, port: int | None) -> None:
        """Outside the cluster, forward a port of this machine."""
        if not self._cluster.is_inside:
            self._tunnel = Tunnel(self._forward, port=port)
        elif port is not None:
            raise ConfigurationError(
                f"port={port}: inside the cluster a server is reached by name, on its own port"
            )

    def _forward(self) -> ForwardStream:
        """A stream to the next replica that runs."""
        running = [pod for pod in self._pods() if pod_status(pod).phase is Phase.RUNNING]
        if not running:
            raise ProviderFailed("no replica runs yet")
        ready = [pod for pod in running if _is_ready(pod)] or running
        pod = ready[next(self._turn) % len(ready)]
        core = self._cluster.fork()
        return ForwardStream(core, pod.metadata.name, self._namespace, self._options.container_port)

    def _pods(self) -> list[Any]:
        pods = self._cluster.pods(self._namespace, self._selector)
        return sorted(pods, key=lambda pod: str(pod.metadata.name))

    def status(self) -> Status:
        if self._stopped:
            return Status(Phase.ABSENT)
        try:
            found = [pod_status(pod) for pod in self._pods()]
        except UNANSWERED as error:  # whether the server is well, only the server can tell now
            return Status(Phase.RUNNING, detail=f"the cluster does not answer: {error}")
        if not found:
            is_pod = self._options.kind == "pod"
            gone = Status(Phase.EXITED, detail="the pod was removed by somebody else")
            return gone if is_pod else Status(Phase.STARTING, detail="no pod was made yet")
        order = (Phase.RUNNING, Phase.STARTING, Phase.EXITED)
        return min(found, key=lambda status: order.index(status.phase))

    def logs(self, tail: int) -> str:
        """What the pods wrote; before they wrote anything, what the cluster complains about."""
        try:
            pods = self._pods()
        except UNANSWERED:
            return ""
        written = [self._logs_of(pod.metadata.name, tail) for pod in pods]
        return "\n".join(text for text in written if text)

    def _logs_of(self, pod: str, tail: int) -> str:
        try:
            response = self._cluster.core.read_namespaced_pod_log(
                pod, self._namespace, tail_lines=tail, _preload_content=False
            )
        except UNANSWERED:
            return ""  # its container has not been made yet, or the cluster does not answer
        text: str = response.data.decode(errors="replace")
        response.release_conn()
        return text.rstrip("\n")

    def complaints(self) -> str:
        """What the cluster complains about, newest last."""
        names = [self._name, *(pod.metadata.name for pod in self._pods() if pod.metadata.name != self._name)]
        return "\n".join(line for name in names for line in self._cluster.warnings(self._namespace, name))

    def wait_until_running(self, timeout_s: float) -> None:
        """Watch the pods until one runs. Raises what keeps them from it, as soon as it is known."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            watched: Any = watch.Watch()  # type: ignore[no-untyped-call]
            stream = watched.stream(
                self._cluster.core.list_namespaced_pod,
                self._namespace,
                label_selector=self._selector,
                timeout_seconds=max(1, round(left)),
            )
            with speaking_to_cluster(f"watching {self._name}"), closing(stream) as events:
                for event in events:
                    if self._stopped or self._is_decided(event["type"], event["object"]):
                        return
        complaints = self.complaints()
        last = complaints.splitlines()[-1:] or [self.status().detail or "it was not scheduled"]
        raise NotReady(f"{self._name} did not run within {timeout_s:g} s: {last[0]}", logs=complaints)

    def _is_decided(self, kind: str, pod: Any) -> bool:
        """Whether a pod runs. Raises if it never will."""
        reason, message = _waiting(pod)
        if reason in NO_IMAGE:
            image = pod.spec.containers[0].image
            raise ImageUnavailable(
                f"the image {image!r} could not be had: {reason}: {message}", logs=self.complaints()
            )
        status = pod_status(pod)
        if kind == "DELETED" or status.phase is Phase.EXITED:
            raise exited(status, self)
        return status.phase is Phase.RUNNING

    def stop(self) -> None:
        with self._stopping:
            if self._stopped:
                return
            if self._tunnel is not None:
                self._tunnel.close()
            for manifest in self._manifests:
                self._cluster.delete(manifest["kind"], self._name, self._namespace)
            self._wait_until_gone()
            self._stopped = True

    def _wait_until_gone(self) -> None:
        """A pod that is asked to end goes on for a moment; after `stop` nothing runs."""
        deadline = time.monotonic() + GONE_TIMEOUT_S
        with speaking_to_cluster(f"removing {self._name}"):
            while self._pods() and time.monotonic() < deadline:
                time.sleep(0.1)


def pod_status(pod: Any) -> Status:
    """What the cluster says of one pod, in a provider's words."""
    phase = pod.status.phase
    container = next(iter(pod.status.container_statuses or ()), None)
    ended = container and (
        container.state.terminated or (container.last_state and container.last_state.terminated)
    )
    reason, message = _waiting(pod)
    if phase in ("Failed", "Succeeded") or (reason == "CrashLoopBackOff" and ended):
        why = (
            ended.reason if ended and ended.reason not in ("Error", "Completed") else None
        ) or pod.status.reason
        detail = "out of memory" if why == "OOMKilled" else (why or "")
        return Status(Phase.EXITED, detail=detail, exit_code=ended.exit_code if ended else None)
    if container is not None and container.state.running is not None:
        return Status(Phase.RUNNING)
    return Status(Phase.STARTING, detail=f"{reason}: {message}" if message else reason or phase or "")


def _waiting(pod: Any) -> tuple[str, str]:
    """Why a pod does not run yet: reason and message, empty when nothing is said."""
    container = next(iter(pod.status.container_statuses or ()), None)
    waiting = container.state.waiting if container is not None else None
    if waiting is not None:
        return waiting.reason or "", waiting.message or ""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason or "", condition.message or ""
    return "", ""


def _is_ready(pod: Any) -> bool:
    conditions = pod.status.conditions or ()
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def sweep_cluster() -> list[Swept]:
    """Remove what dead owners left in the namespace that is configured."""
    cluster = Cluster()
    try:
        return sweep_namespace(cluster, cluster.namespace)
    finally:
        cluster.close()


def sweep_namespace(cluster: Cluster, namespace: str, now: float | None = None) -> list[Swept]:
    """Remove from one namespace what belongs to the dead, or has outlived its time."""
    now = time.time() if now is None else now
    swept: list[Swept] = []
    lists = {
        "Deployment": cluster.apps.list_namespaced_deployment,
        "Pod": cluster.core.list_namespaced_pod,
        "Service": cluster.core.list_namespaced_service,
    }
    for kind, find in lists.items():
        try:
            with speaking_to_cluster(f"looking for what dead owners left in {namespace}"):
                found = find(namespace, label_selector=OWNER_LABEL, _request_timeout=30.0).items
        except ProviderFailed as error:  # a sweep is nobody's main task
            logger.info("%s", error)
            continue
        for thing in found:
            about = thing.metadata
            owner = (about.labels or {}).get(OWNER_LABEL, "")
            expires = (about.annotations or {}).get(EXPIRES, "")
            is_over = expires.isdecimal() and int(expires) < now
            if about.deletion_timestamp is not None or not (is_orphan(owner) or is_over):
                continue
            if attempt(lambda kind=kind, name=about.name: cluster.delete(kind, name, namespace), about.name):  # type: ignore[misc]
                swept.append(Swept(kind.lower(), about.name, owner))
    return swept
