"""The cluster of the page on Ray: its pods are valid, strictly, for older and newer Kubernetes."""

import copy
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

PAGE = Path(__file__).parents[2] / "docs/guides/ray.md"


def cluster() -> dict[str, Any]:
    found = re.search(r"```yaml title=\"raycluster.yaml\"\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    manifest: dict[str, Any] = yaml.safe_load(found[1])
    return manifest


def pods() -> list[dict[str, Any]]:
    spec = cluster()["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    kinds = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}}
    return [{**kinds, **copy.deepcopy(group["template"])} for group in groups]


@pytest.mark.parametrize("version", ["1.25", "1.31", "1.37"])
def test_the_pods_of_the_ray_cluster_are_valid(version: str) -> None:
    assert len(pods()) == 2
    for pod in pods():
        kubernetes_validate.validate(pod, version, strict=True)


def test_a_worker_has_room_for_as_many_servers_as_it_says() -> None:
    worker = cluster()["spec"]["workerGroupSpecs"][0]
    assert worker["rayStartParams"]["resources"] == '"{\\"sandbox\\": 3}"'
    assert worker["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "6"
