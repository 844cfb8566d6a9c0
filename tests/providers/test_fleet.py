"""A fleet's manifests, by hand and by property; valid for newer clusters than there is one to try."""

from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import ConfigurationError
from envtorch.providers.fleet_files import ADAPTER_FILE, fleet_base, fleet_stream
from envtorch.providers.fleet_manifests import METRIC, adapter_values, fleet_manifests
from envtorch.providers.fleet_options import FleetOptions, fleet_name
from envtorch.providers.manifest_text import manifest_text
from envtorch.providers.manifests import Manifest
from tests.providers.test_manifests import VERSIONS

PLAIN: dict[str, Any] = {"image": "registry.local/team/echo:1", "name": "echo"}
FULL: dict[str, Any] = {
    **PLAIN,
    "namespace": "rl",
    "replicas": 12,
    "max_replicas": 40,
    "target_use": 0.65,
    "command": ["envtorch", "serve", "echo_env", "--host", "0.0.0.0", "$HOME"],
    "port": 9000,
    "cpus": 0.25,
    "memory": "512Mi",
    "read_only": True,
    "finish_s": 900,
    "drain_s": 60,
    "token_secret": "echo-token",
    "clients": {"app": "trainer", "example.com/team": "rl"},
    "metrics_from": "prometheus",
    "egress": True,
}


def by_kind(**options: Any) -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for manifest in fleet_manifests(FleetOptions(**options))}


def workload_of(found: dict[str, Manifest]) -> Manifest:
    return found.get("StatefulSet") or found["Deployment"]


def server_of(found: dict[str, Manifest]) -> Manifest:
    server: Manifest = workload_of(found)["spec"]["template"]["spec"]["containers"][0]
    return server


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["statefulset", "deployment"])
@pytest.mark.parametrize("options", [PLAIN, FULL], ids=["plain", "full"])
def test_every_manifest_is_valid_strictly(options: dict[str, Any], kind: str, version: str) -> None:
    for manifest in by_kind(**options, kind=kind).values():
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= "1.33"])
def test_the_host_grade_is_valid_where_it_works(version: str) -> None:
    found = by_kind(**FULL, grade="host")
    for manifest in found.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    pod = workload_of(found)["spec"]["template"]["spec"]
    assert pod["hostUsers"] is False
    assert server_of(found)["securityContext"]["procMount"] == "Unmasked"
    assert server_of(found)["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_container_grade_passes_the_restricted_standard() -> None:
    """The controls of the Pod Security Standard `restricted` that concern these fields."""
    found = by_kind(**FULL)
    pod, server = workload_of(found)["spec"]["template"]["spec"], server_of(found)["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "procMount" not in server
    assert (server["allowPrivilegeEscalation"], server["capabilities"]) == (False, {"drop": ["ALL"]})
    assert {key for volume in pod["volumes"] for key in volume} == {"name", "emptyDir"}


def test_what_the_autoscaler_asks_for_is_what_the_adapter_offers() -> None:
    found = by_kind(**FULL)
    (metric,) = found["HorizontalPodAutoscaler"]["spec"]["metrics"]
    (rule,) = adapter_values(FleetOptions(**FULL))["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"] == METRIC
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "650m"}
    target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "echo"}
    assert "replicas" not in workload_of(found)["spec"], "applied again, it would undo the autoscaler's work"


def test_a_full_server_stays_ready_and_one_that_can_build_nothing_stays_alive() -> None:
    server = server_of(by_kind(**PLAIN))
    paths = {name: server[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/health", "readiness": "/health", "liveness": "/live"}


def test_a_replica_is_named_after_its_pod_and_found_by_name_while_it_ends() -> None:
    found = by_kind(**PLAIN)
    variables = {variable["name"]: variable for variable in server_of(found)["env"]}
    assert variables["ENVTORCH_REPLICA"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert found["Service"]["spec"]["publishNotReadyAddresses"] is True
    assert workload_of(found)["spec"]["serviceName"] == found["Service"]["metadata"]["name"]


def test_the_token_comes_from_its_secret_and_dollars_arrive_as_they_are() -> None:
    server = server_of(by_kind(**FULL))
    (token,) = [variable for variable in server["env"] if variable["name"] == "ENVTORCH_TOKEN"]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "echo-token", "key": "token"}}
    assert server["args"][-1] == "$$HOME"


def test_a_base_has_a_file_for_each_manifest_and_tells_the_grade() -> None:
    files = fleet_base(FleetOptions(**FULL))
    named = yaml.safe_load(files["kustomization.yaml"])["resources"]
    assert [yaml.safe_load(files[name]) for name in named] == fleet_manifests(FleetOptions(**FULL))
    assert set(files) == {*named, "kustomization.yaml", "README.md", ADAPTER_FILE}
    assert "`http://echo-N.echo.rl:9000`" in files["README.md"]
    assert "container grade" in files["README.md"]
    assert "host grade" in fleet_base(FleetOptions(**PLAIN, grade="host"))["README.md"]
    assert ADAPTER_FILE not in fleet_base(FleetOptions(**PLAIN))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "job"}, "a fleet is a statefulset or a deployment"),
        ({"grade": "best"}, "grade is container or host"),
        ({"replicas": 0}, "at least one"),
        ({"replicas": 4, "max_replicas": 4}, "the most is larger"),
        ({"target_use": 0.0}, "above 0"),
        ({"cpus": 0.0}, "at least 0.001"),
        ({"memory": "512m"}, "as in 512Mi"),
        ({"port": 0}, "no port"),
        ({"user": 0}, "not run as root"),
        ({"drain_s": -1}, "0 or more"),
        ({"name": "Echo"}, "cannot be the fleet's name"),
        ({"name": "e" * 53}, "cannot be the fleet's name"),
        ({"namespace": "a b"}, "cannot be a name in Kubernetes"),
        ({"clients": {"app": "a b"}}, "no label"),
    ],
    ids=str,
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        FleetOptions(**{**PLAIN, **options})


FLEETS = st.builds(
    FleetOptions,
    image=st.sampled_from(["echo:1", "registry.local:5000/team/echo@sha256:" + "0" * 64]),
    name=st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True),
    namespace=st.none() | st.just("rl"),
    kind=st.sampled_from(["statefulset", "deployment"]),
    replicas=st.integers(1, 500),
    max_replicas=st.none() | st.integers(501, 2000),
    target_use=st.floats(0.01, 1.0),
    command=st.lists(st.text(), max_size=3),
    cpus=st.floats(0.001, 64),
    memory=st.sampled_from(["512Mi", "1.5Gi"]),
    grade=st.sampled_from(["container", "host"]),
    read_only=st.booleans(),
    finish_s=st.integers(0, 10_000),
    drain_s=st.integers(0, 600),
    token_secret=st.none() | st.just("secret"),
    clients=st.dictionaries(st.sampled_from(["app", "team"]), st.sampled_from(["a", "b-c"])),
    egress=st.booleans(),
)


@given(FLEETS)
def test_whatever_the_options_the_parts_fit_together(options: FleetOptions) -> None:
    found = {manifest["kind"]: manifest for manifest in fleet_manifests(options)}
    template = workload_of(found)["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    selectors = [
        workload_of(found)["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    if "PodDisruptionBudget" in found:
        budget = found["PodDisruptionBudget"]["spec"]
        selectors.append(budget["selector"]["matchLabels"])
        assert 1 <= budget["maxUnavailable"] < options.replicas
    assert ("PodDisruptionBudget" in found) == (options.replicas > 1)
    assert all(selector and selector.items() <= labels for selector in selectors)
    server = server_of(found)
    variables = {variable["name"]: variable.get("value") for variable in server["env"]}
    sleeps_s = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    ends_s = sleeps_s + int(variables["ENVTORCH_FINISH"] or 0) + int(variables["ENVTORCH_DRAIN"] or 0)
    assert template["spec"]["terminationGracePeriodSeconds"] > ends_s + 5, "it may close for five seconds"
    assert server["resources"]["requests"] == server["resources"]["limits"]
    assert ("HorizontalPodAutoscaler" in found) == (options.max_replicas is not None)
    assert template["spec"].get("hostUsers", True) == (options.grade == "container")
    namespaces = {manifest["metadata"].get("namespace") for manifest in found.values()}
    assert namespaces == {options.namespace}


@given(FLEETS)
def test_the_text_says_exactly_what_the_manifests_say_and_always_the_same(options: FleetOptions) -> None:
    text = fleet_stream(options)
    assert list(yaml.safe_load_all(text)) == fleet_manifests(options)
    assert text == fleet_stream(options)


@given(st.lists(st.text()))
def test_every_text_is_read_as_it_was_written(texts: list[str]) -> None:
    assert yaml.safe_load(manifest_text({"args": texts})) == {"args": texts}


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "on",
        "y",
        "N",
        "true",
        "null",
        "~",
        "0123",
        "0129",
        "0o17",
        "0x1F",
        "1e3",
        "-1E3",
        "1_000",
        ".5",
        ".inf",
        "12:30",
        "2026-01-01",
        "=",
        "<<",
    ],
)
def test_a_text_that_some_reader_takes_for_something_else_is_in_quotes(text: str) -> None:
    assert manifest_text({"value": text}) == f"value: '{text}'\n"


def test_keys_keep_their_order_numbers_their_form_and_lines_their_breaks() -> None:
    ports = {"b": 8000, "a": 0.5, "c": True, "d": None}
    manifest = {"second": ports, "again": ports, "script": "set -e\nrun it\n", "long": "word " * 60 + "end"}
    assert manifest_text(manifest).splitlines() == [
        *("second:", "  b: 8000", "  a: 0.5", "  c: true", "  d: null"),
        *("again:", "  b: 8000", "  a: 0.5", "  c: true", "  d: null"),
        *("script: |", "  set -e", "  run it"),
        f"long: {'word ' * 60}end",
    ]


@given(st.text())
def test_every_image_gives_a_name_that_a_fleet_may_have(image: str) -> None:
    assert FleetOptions(image=image, name=fleet_name(image)).name == fleet_name(image)
