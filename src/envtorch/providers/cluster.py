"""A connection to a Kubernetes cluster: from inside by the pod's own account, from outside by kubeconfig."""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from envtorch.errors import ConfigurationError, EngineUnavailable, ProviderFailed
from envtorch.extras import missing_extra
from envtorch.providers.manifests import Manifest

try:
    import urllib3
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.stream import portforward
except ModuleNotFoundError as missing:
    raise missing_extra("kubernetes", f"Kubernetes needs {missing.name!r}") from missing

__all__ = ["Cluster", "ForwardStream", "speaking_to_cluster"]

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
REQUEST_TIMEOUT_S = 30.0
RELAY_GRACE_S = 4.0


@contextmanager
def speaking_to_cluster(doing: str) -> Iterator[None]:
    """Whatever the cluster refuses in this block is a `ProviderFailed` with one sentence."""
    try:
        yield
    except ApiException as error:
        reason = " ".join(str(_message(error)).split())
        if error.status in (400, 422):
            raise ConfigurationError(f"{doing}: the cluster does not accept it: {reason}") from error
        raise ProviderFailed(f"{doing} failed: {reason}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        reason = " ".join(str(error).split())
        raise EngineUnavailable(f"{doing} failed, because the cluster does not answer: {reason}") from error


def _message(error: Any) -> str:
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        return str(json.loads(error.body)["message"])
    return str(error.reason)


class Cluster:
    """One cluster and one namespace in it."""

    def __init__(self, *, kubeconfig: str | None = None, context: str | None = None) -> None:
        self._configuration = client.Configuration()
        self.is_inside = False
        self.namespace = "default"
        try:
            self._load(kubeconfig, context)
        except (ConfigException, OSError, UnicodeDecodeError) as error:
            raise EngineUnavailable(
                f"no Kubernetes cluster is configured ({error}): set KUBECONFIG, or run inside a cluster"
            ) from error
        self._configuration.retries = False  # one failure is one answer; the caller has the deadline
        self._api: Any = client.ApiClient(self._configuration)
        self.core: Any = client.CoreV1Api(self._api)
        self.apps: Any = client.AppsV1Api(self._api)

    def _load(self, kubeconfig: str | None, context: str | None) -> None:
        loading: Any = config  # untyped
        if kubeconfig is None and context is None and NAMESPACE_FILE.exists():
            loading.load_incluster_config(client_configuration=self._configuration)
            self.is_inside = True
            self.namespace = NAMESPACE_FILE.read_text().strip()
            return
        loading.load_kube_config(
            config_file=kubeconfig, context=context, client_configuration=self._configuration
        )
        contexts, active = loading.list_kube_config_contexts(config_file=kubeconfig)
        chosen = next((found for found in contexts if found["name"] == context), active)
        self.namespace = chosen["context"].get("namespace") or "default"

    def create(self, manifest: Manifest, namespace: str) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        make = {
            "Pod": self.core.create_namespaced_pod,
            "Service": self.core.create_namespaced_service,
            "Deployment": self.apps.create_namespaced_deployment,
        }[kind]
        with speaking_to_cluster(f"making the {kind.lower()} {name}"):
            _finish(make(namespace, manifest, **_RAW))

    def delete(self, kind: str, name: str, namespace: str) -> None:
        """Remove one object; one that is gone already is no error."""
        remove = {
            "Pod": self.core.delete_namespaced_pod,
            "Service": self.core.delete_namespaced_service,
            "Deployment": self.apps.delete_namespaced_deployment,
        }[kind]
        with speaking_to_cluster(f"removing the {kind.lower()} {name}"):
            try:
                # Not parsed: what a deletion answers with differs between versions of the cluster.
                _finish(remove(name, namespace, propagation_policy="Background", **_RAW))
            except ApiException as error:
                if error.status != 404:
                    raise

    def pods(self, namespace: str, selector: str) -> Sequence[Any]:
        found = self.core.list_namespaced_pod(
            namespace, label_selector=selector, _request_timeout=REQUEST_TIMEOUT_S
        )
        return list(found.items)

    def warnings(self, namespace: str, name: str) -> list[str]:
        """What the cluster has to complain about one object, oldest first."""
        try:
            events = self.core.list_namespaced_event(
                namespace, field_selector=f"involvedObject.name={name}", _request_timeout=REQUEST_TIMEOUT_S
            )
        except (ApiException, urllib3.exceptions.HTTPError):
            return []  # they only explain; the failure itself is told anyway
        found = [event for event in events.items if event.type == "Warning"]
        return [f"{event.reason}: {' '.join((event.message or '').split())}" for event in found]

    def fork(self) -> "Any":
        """An interface of its own for one stream: opening a stream is not safe beside other calls."""
        return client.CoreV1Api(client.ApiClient(self._configuration))

    def close(self) -> None:
        with suppress(Exception):
            self._api.rest_client.pool_manager.clear()
        self._api.close()


_RAW: Any = {"_preload_content": False, "_request_timeout": REQUEST_TIMEOUT_S}


def _finish(response: Any) -> None:
    with suppress(AttributeError):
        response.read()
        response.release_conn()


class ForwardStream:
    """One connection to a port of a pod, through the cluster's own interface."""

    def __init__(self, core: Any, pod: str, namespace: str, port: int) -> None:
        self._core = core
        self._forward = portforward(
            core.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port)
        )
        self._socket: Any = self._forward.socket(port)
        self._socket.setblocking(True)

    def receive(self) -> bytes:
        return bytes(self._socket.recv(64 * 1024))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """The relay closes its socket when it sees its local end gone; it gets the time to.

        A socket that it left open is ended first and closed only then: the number of one that is
        closed under a relay that still reads is soon another's.
        """
        self._forward.close()
        if not self._relay_closed(RELAY_GRACE_S):
            with suppress(OSError, AttributeError):  # AttributeError: the relay was quicker
                self._forward.websocket.sock.shutdown(socket.SHUT_RDWR)
            if not self._relay_closed(RELAY_GRACE_S / 4):
                with suppress(OSError, AttributeError):
                    self._forward.websocket.sock.close()
        self._core.api_client.close()

    def _relay_closed(self, patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while self._forward.websocket.sock is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._forward.websocket.sock is None
