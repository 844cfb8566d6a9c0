"""Manifests: made without a cluster, and checked offline against the schemas of newer ones."""

from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import ConfigurationError
from envtorch.providers.manifests import EXPIRES, SERVER_LABEL, KubernetesOptions, render, server_name
from envtorch.providers.ownership import OWNER_LABEL, OwnerTag
from envtorch.providers.provider_options import read_options

VERSIONS = ("1.25", "1.28", "1.31", "1.34", "1.37")

EVERYTHING: dict[str, Any] = {
    "namespace": "rl",
    "cpus": 0.5,
    "memory": "512Mi",
    "command": ["python3", "-c", "print('$HOME')"],
    "container_port": 9000,
    "pull": "always",
    "image_pull_secrets": ["registry"],
    "service_account": "runner",
    "user": 10001,
    "read_only": True,
    "runtime_class": "gvisor",
    "labels": {"team": "rl"},
    "annotations": {"note": "a b"},
    "node_selector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "owner_reference": {"apiVersion": "v1", "kind": "Pod", "name": "trainer", "uid": "1-2-3"},
    "ttl_s": 90.5,
    "liveness": True,
}

CASES: dict[str, dict[str, Any]] = {
    "plain pod": {},
    "full pod": EVERYTHING,
    "plain deployment": {"kind": "deployment", "replicas": 3},
    "full deployment": {**EVERYTHING, "kind": "deployment", "replicas": 3},
}


def rendered(**options: Any) -> list[dict[str, Any]]:
    return render(
        "registry.local/team/echo:1",
        read_options(KubernetesOptions, options),
        name="envtorch-echo-1",
        owner=str(OwnerTag.current()),
        env_vars={"PLAIN": "value", "ODD": "$(HOME) $$"},
        now=1000.0,
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_manifest_is_valid_strictly(case: str, version: str) -> None:
    for manifest in rendered(**CASES[case]):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_validator_would_notice() -> None:
    pod = rendered()[0]
    pod["spec"]["containers"][0]["imagePullPolizy"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)


def test_a_pod_is_not_restarted_and_ends_with_its_time() -> None:
    pod, service = rendered(ttl_s=90.5)
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["activeDeadlineSeconds"] == 91
    assert pod["metadata"]["annotations"][EXPIRES] == "1091"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {SERVER_LABEL: "envtorch-echo-1"}


def test_a_deployment_finds_its_own_pods_and_no_others() -> None:
    deployment, service = rendered(kind="deployment", replicas=3)
    template = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template.items()
    assert service["spec"]["selector"].items() <= template.items()
    assert deployment["spec"]["replicas"] == 3
    assert "restartPolicy" not in deployment["spec"]["template"]["spec"]


def test_everything_carries_its_owner() -> None:
    for manifest in [*rendered(), *rendered(kind="deployment")]:
        assert manifest["metadata"]["labels"][OWNER_LABEL] == str(OwnerTag.current())


def test_a_server_has_few_rights_unless_told_otherwise() -> None:
    spec = rendered()[0]["spec"]
    security = spec["containers"][0]["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_dollars_arrive_as_they_are() -> None:
    environment = {e["name"]: e["value"] for e in rendered()[0]["spec"]["containers"][0]["env"]}
    assert environment == {"PLAIN": "value", "ODD": "$$(HOME) $$$$"}


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "job"},
        {"kind": "pod", "replicas": 2},
        {"kind": "deployment", "replicas": 0},
        {"pull": "sometimes"},
        {"memory": "512m"},
        {"memmory": "1Gi"},
    ],
    ids=str,
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        rendered(**options)


@given(st.text())
def test_every_image_gives_a_name_that_dns_can_carry(image: str) -> None:
    name = server_name(image)
    assert len(name) <= 63
    assert name.isascii()
    assert name.replace("-", "a").isalnum()
    assert name == name.lower()
