"""A fleet of servers in Kubernetes, as manifests: a pure function of its options."""

import math

from envtorch.providers.fleet_options import PRE_STOP_S, FleetOptions
from envtorch.providers.manifests import Manifest

__all__ = ["METRIC", "adapter_values", "fleet_manifests", "grade_note"]

METRIC = "envtorch_sessions_used"
"""The share of a pod's sessions that are in use, as the custom metrics API knows it."""

START_S = 300
"""How long a server may take until it is healthy: as long as one environment may take to be built."""
UNAVAILABLE_SHARE = 10
"""One in so many replicas may be away because of an eviction."""

SESSIONS = "sum(envtorch_sessions{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
CAPACITY = "max(envtorch_sessions_capacity{<<.LabelMatchers>>}) by (<<.GroupBy>>)"


def fleet_manifests(options: FleetOptions) -> list[Manifest]:
    """Everything that the fleet is made of, in the order in which it is to be applied."""
    found = [_service(options), _network_policy(options), _workload(options)]
    if options.replicas > 1:  # with one replica, a budget either forbids every eviction or none
        found.append(_disruption_budget(options))
    if options.max_replicas is not None:
        found.append(_autoscaler(options, options.max_replicas))
    return found


def grade_note(options: FleetOptions) -> list[str]:
    """Which grade the sandbox has in these pods, and what that needs of the cluster."""
    if options.grade == "container":
        return [
            "Sandboxes are of container grade: Landlock, seccomp and rlimits, and no fork of a live sandbox.",
            "It needs nothing of the cluster; the pods pass the Pod Security Standard 'restricted'.",
        ]
    return [
        "Sandboxes are of host grade: namespaces, a private root, and forks of live sandboxes.",
        "It needs Kubernetes 1.33 or newer, nodes with user namespaces for pods (hostUsers: false), and a",
        "namespace of the Pod Security Standard 'privileged': a sandbox makes namespaces of its own, which",
        "the runtime's default seccomp and AppArmor profiles forbid. No capability is granted, and root in",
        "the pod's namespace is nobody on the node. `envtorch doctor` in a pod says which grade it has.",
    ]


def adapter_values(options: FleetOptions) -> Manifest:
    """The rule by which prometheus-adapter offers the metric of the autoscaler: values of its Helm chart."""
    rule = {
        "seriesQuery": 'envtorch_sessions_capacity{namespace!="",pod!=""}',
        "resources": {
            "overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}},
        },
        "name": {"as": METRIC},
        # A server without sessions has no series for them.
        "metricsQuery": f"({SESSIONS} or 0 * {CAPACITY}) / {CAPACITY}",
    }
    return {"rules": {"custom": [rule]}}


def _about(options: FleetOptions, **also: Manifest) -> Manifest:
    about: Manifest = {"name": options.name}
    if options.namespace is not None:
        about["namespace"] = options.namespace
    return {**about, "labels": _labels(options), **also}


def _selector(options: FleetOptions) -> Manifest:
    return {"app.kubernetes.io/name": "envtorch", "app.kubernetes.io/instance": options.name}


def _labels(options: FleetOptions) -> Manifest:
    return {**_selector(options), "app.kubernetes.io/component": "server"}


def _service(options: FleetOptions) -> Manifest:
    spec: Manifest = {
        "clusterIP": "None",
        "selector": _selector(options),
        "ports": [{"name": "http", "port": options.port, "targetPort": "http"}],
    }
    if options.kind == "statefulset":
        # A client finds its session's replica by name, also while that is shutting down.
        spec["publishNotReadyAddresses"] = True
    return {"apiVersion": "v1", "kind": "Service", "metadata": _about(options), "spec": spec}


def _network_policy(options: FleetOptions) -> Manifest:
    port = [{"port": "http", "protocol": "TCP"}]
    scraper = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": options.metrics_from}}}
    clients: Manifest = {"podSelector": {"matchLabels": dict(options.clients)} if options.clients else {}}
    spec: Manifest = {
        "podSelector": {"matchLabels": _selector(options)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [clients, scraper], "ports": port}],
        "egress": [{}] if options.egress else [],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _about(options),
        "spec": spec,
    }


def _workload(options: FleetOptions) -> Manifest:
    scraped = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(options.port),
        "prometheus.io/path": "/metrics",
    }
    template = {
        "metadata": {"labels": _labels(options), "annotations": scraped},
        "spec": _pod(options),
    }
    spec: Manifest = {"selector": {"matchLabels": _selector(options)}, "template": template}
    if options.max_replicas is None:  # otherwise the number is the autoscaler's
        spec = {"replicas": options.replicas, **spec}
    if options.kind == "deployment":
        spec["strategy"] = {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0},
        }
    else:
        spec |= {
            "serviceName": options.name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
        }
    kind = {"deployment": "Deployment", "statefulset": "StatefulSet"}[options.kind]
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": _about(options), "spec": spec}


def _pod(options: FleetOptions) -> Manifest:
    security: Manifest = {"runAsUser": options.user, "runAsGroup": options.user, "runAsNonRoot": True}
    pod: Manifest = {
        "terminationGracePeriodSeconds": options.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security,
        "containers": [_server(options)],
    }
    if options.grade == "host":
        pod["hostUsers"] = False
        security["seccompProfile"] = {"type": "Unconfined"}
        security["appArmorProfile"] = {"type": "Unconfined"}
    else:
        security["seccompProfile"] = {"type": "RuntimeDefault"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _selector(options)},
    }
    pod["topologySpreadConstraints"] = [spread]
    if options.read_only:
        pod["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    return pod


def _server(options: FleetOptions) -> Manifest:
    security: Manifest = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": options.read_only,
    }
    if options.grade == "host":
        security["procMount"] = "Unmasked"
    resources = {"cpu": f"{math.ceil(options.cpus * 1000)}m", "memory": options.memory}
    server: Manifest = {
        "name": "server",
        "image": options.image,
        "ports": [{"name": "http", "containerPort": options.port}],
        "env": _environment(options),
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": security,
        **_probes(),
        # Until name servers know that this pod leaves, sessions are still opened here.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(PRE_STOP_S)]}}},
    }
    if options.command:
        server["args"] = [part.replace("$", "$$") for part in options.command]
    if options.read_only:
        server["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    return server


def _environment(options: FleetOptions) -> list[Manifest]:
    name_of_pod = {"fieldRef": {"fieldPath": "metadata.name"}}
    variables: list[Manifest] = [
        {"name": "ENVTORCH_REPLICA", "valueFrom": name_of_pod},
        {"name": "ENVTORCH_FINISH", "value": str(options.finish_s)},
        {"name": "ENVTORCH_DRAIN", "value": str(options.drain_s)},
    ]
    if options.token_secret is not None:
        key = {"secretKeyRef": {"name": options.token_secret, "key": "token"}}
        variables.append({"name": "ENVTORCH_TOKEN", "valueFrom": key})
    return variables


def _probes() -> Manifest:
    """A full server is ready, too: otherwise updates and evictions would wait for sessions to end. One that
    can build no environment any more is not ended, as its sessions go on."""

    def asking(path: str, period_s: int, failures: int) -> Manifest:
        asked = {"path": path, "port": "http"}
        return {
            "httpGet": asked,
            "periodSeconds": period_s,
            "timeoutSeconds": 5,
            "failureThreshold": failures,
        }

    return {
        "startupProbe": asking("/health", 2, START_S // 2),
        "readinessProbe": asking("/health", 5, 3),
        "livenessProbe": asking("/live", 10, 6),
    }


def _disruption_budget(options: FleetOptions) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _about(options),
        "spec": {
            "maxUnavailable": max(1, options.replicas // UNAVAILABLE_SHARE),
            "selector": {"matchLabels": _selector(options)},
        },
    }


def _autoscaler(options: FleetOptions, most: int) -> Manifest:
    kind = {"deployment": "Deployment", "statefulset": "StatefulSet"}[options.kind]
    target = {"type": "AverageValue", "averageValue": f"{round(options.target_use * 1000)}m"}
    spec: Manifest = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": options.name},
        "minReplicas": options.replicas,
        "maxReplicas": most,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": METRIC}, "target": target}}],
        "behavior": {
            "scaleUp": {
                "stabilizationWindowSeconds": 0,
                "policies": [{"type": "Percent", "value": 100, "periodSeconds": 30}],
            },
            # A replica that leaves takes its time to finish with it.
            "scaleDown": {
                "stabilizationWindowSeconds": min(3600, max(300, options.finish_s)),
                "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}],
            },
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _about(options),
        "spec": spec,
    }
