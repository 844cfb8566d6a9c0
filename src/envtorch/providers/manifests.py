"""What a server is in Kubernetes: manifests, made by pure functions out of an image and options."""

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.providers.ownership import OWNER_LABEL, PROVIDER_LABEL

__all__ = ["EXPIRES", "SERVER_LABEL", "KubernetesOptions", "Manifest", "render", "server_name"]

Manifest = dict[str, Any]

SERVER_LABEL = "envtorch.server"
"""The label that everything of one server carries, and by which its Service finds its pods."""

EXPIRES = "envtorch.expires"
"""The annotation that tells, in seconds since 1970, when a sweep may remove what its owner left."""

PULL_POLICIES = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}
STOP_GRACE_S = 3


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """The options of `KubernetesProvider.start_container`."""

    namespace: str | None = None
    """By default the one of the kubeconfig's context, or of the pod this runs in."""

    kind: str = "pod"
    """`"pod"`: one server that is not restarted. `"deployment"`: replicas that are."""

    replicas: int = 1
    cpus: float | None = None
    memory: str | int | None = None
    """Bytes, or a quantity with a binary suffix: `"512Mi"`. More than that and the server is killed."""

    command: Sequence[str] | None = None
    """What to run instead of the image's own command."""

    container_port: int = 8000
    pull: str = "missing"
    """`"missing"`, `"always"` or `"never"`."""

    image_pull_secrets: Sequence[str] = ()
    service_account: str | None = None
    user: int | None = None
    read_only: bool = False
    """The root file system cannot be written; `/tmp` can."""

    drop_capabilities: bool = True
    no_new_privileges: bool = True
    runtime_class: str | None = None
    """Another container runtime that the cluster knows, such as gVisor."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    owner_reference: Mapping[str, Any] | None = None
    """An object of the cluster with which everything made here is removed: `apiVersion`, `kind`,
    `name` and `uid`."""

    ttl_s: float | None = None
    """How long it may live: the cluster itself ends a pod, a sweep removes the rest."""

    liveness: bool = False
    """Let the cluster end a server that is not healthy any more."""

    def __post_init__(self) -> None:
        if self.kind not in ("pod", "deployment"):
            raise ConfigurationError(f"kind={self.kind!r}: it is 'pod' or 'deployment'")
        if self.kind == "pod" and self.replicas != 1:
            raise ConfigurationError("a pod is one replica: use kind='deployment' for more")
        if self.replicas < 1:
            raise ConfigurationError(f"replicas={self.replicas!r}: there is at least one")
        if self.pull not in PULL_POLICIES:
            raise ConfigurationError(f"pull={self.pull!r}: it is 'missing', 'always' or 'never'")
        if isinstance(self.memory, str) and not re.fullmatch(
            r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|K|M|G|T)?", self.memory
        ):
            raise ConfigurationError(f"memory={self.memory!r}: write bytes, or a quantity like '512Mi'")


def server_name(image: str) -> str:
    """A name for a server of `image` that no other one has, and that DNS can carry."""
    stem = image.rpartition("/")[2].partition("@")[0].partition(":")[0].lower()
    stem = re.sub(r"[^a-z0-9-]+", "-", stem).strip("-")[:30] or "server"
    return f"envtorch-{stem}-{secrets.token_hex(4)}"


def render(
    image: str,
    options: KubernetesOptions,
    *,
    name: str,
    owner: str,
    env_vars: Mapping[str, str] | None = None,
    now: float = 0.0,
) -> list[Manifest]:
    """Everything that has to be made for one server, in this order."""
    about = _metadata(name, owner, options, now)
    pod = _pod_spec(image, options, dict(env_vars or {}))
    service: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {
            "clusterIP": "None",  # headless: a client sees every replica, and balances by itself
            "selector": {SERVER_LABEL: name},
            "ports": [{"name": "http", "port": options.container_port, "targetPort": "http"}],
        },
    }
    if options.kind == "pod":
        if options.ttl_s is not None:
            pod["activeDeadlineSeconds"] = max(1, math.ceil(options.ttl_s))
        spec = {**pod, "restartPolicy": "Never"}
        return [{"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}, service]
    template_about = {"labels": about["labels"], "annotations": about["annotations"]}
    deployment: Manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": about,
        "spec": {
            "replicas": options.replicas,
            "selector": {"matchLabels": {SERVER_LABEL: name}},
            "template": {"metadata": template_about, "spec": pod},
        },
    }
    return [deployment, service]


def _metadata(name: str, owner: str, options: KubernetesOptions, now: float) -> Manifest:
    expires = {EXPIRES: str(math.ceil(now + options.ttl_s))} if options.ttl_s is not None else {}
    about: Manifest = {
        "name": name,
        "labels": {
            **options.labels,
            OWNER_LABEL: owner,
            PROVIDER_LABEL: "kubernetes",
            SERVER_LABEL: name,
        },
        "annotations": {**options.annotations, **expires},
    }
    if options.owner_reference is not None:
        about["ownerReferences"] = [dict(options.owner_reference)]
    return about


def _pod_spec(image: str, options: KubernetesOptions, env_vars: Mapping[str, str]) -> Manifest:
    spec: Manifest = {
        "containers": [_container(image, options, env_vars)],
        "terminationGracePeriodSeconds": STOP_GRACE_S,
        # A server has no business with the cluster's own interface.
        "automountServiceAccountToken": options.service_account is not None,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    if options.read_only:
        spec["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    optional = {
        "imagePullSecrets": [{"name": secret} for secret in options.image_pull_secrets],
        "serviceAccountName": options.service_account,
        "nodeSelector": dict(options.node_selector),
        "tolerations": [dict(toleration) for toleration in options.tolerations],
        "runtimeClassName": options.runtime_class,
    }
    return {**spec, **{key: value for key, value in optional.items() if value}}


def _container(image: str, options: KubernetesOptions, env_vars: Mapping[str, str]) -> Manifest:
    health = {"httpGet": {"path": "/health", "port": "http"}}
    security: Manifest = {
        "allowPrivilegeEscalation": not options.no_new_privileges,
        "readOnlyRootFilesystem": options.read_only,
    }
    if options.drop_capabilities:
        security["capabilities"] = {"drop": ["ALL"]}
    if options.user is not None:
        security |= {"runAsUser": options.user, "runAsNonRoot": options.user != 0}
    container: Manifest = {
        "name": "server",
        "image": image,
        "imagePullPolicy": PULL_POLICIES[options.pull],
        "ports": [{"name": "http", "containerPort": options.container_port}],
        "env": [{"name": name, "value": _literally(value)} for name, value in env_vars.items()],
        "readinessProbe": {**health, "periodSeconds": 1, "timeoutSeconds": 3},
        "securityContext": security,
    }
    if options.command is not None:
        container["args"] = [_literally(part) for part in options.command]
    if options.liveness:
        container["livenessProbe"] = {
            **health,
            "periodSeconds": 5,
            "timeoutSeconds": 3,
            "initialDelaySeconds": 30,
        }
    limits = {
        "cpu": f"{round(options.cpus * 1000)}m" if options.cpus is not None else None,
        "memory": str(options.memory) if options.memory is not None else None,
    }
    limits = {resource: limit for resource, limit in limits.items() if limit is not None}
    if limits:
        container["resources"] = {"limits": limits, "requests": limits}
    if options.read_only:
        container["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    return container


def _literally(text: str) -> str:
    """Kubernetes puts variables into `$(NAME)`; a doubled dollar is a dollar."""
    return text.replace("$", "$$")
