"""The providers under test, each with the probe: found by name from other processes too."""

import shlex
from pathlib import Path

from envtorch.providers.process import ProcessProvider
from envtorch.testing import PROBE_APP, PROBE_COMMAND, ProviderSubject
from tests.support import PATIENCE_S

PYTHON_IMAGE = "python:3.11-slim"
PROBE_PROJECT = Path(__file__).parent / "probe_project"


def process() -> ProviderSubject:
    return ProviderSubject(
        make=ProcessProvider,
        image=PROBE_APP,
        ready_timeout_s=PATIENCE_S,
        importable="tests.providers.subjects:process",
    )


def docker(network: str = "bridge") -> ProviderSubject:
    from envtorch.providers.docker import LocalDockerProvider

    return ProviderSubject(
        make=LocalDockerProvider,
        image=PYTHON_IMAGE,
        options={"command": PROBE_COMMAND, "network": network, "memory": "128m"},
        missing_image="127.0.0.1:9/envtorch/missing:1",
        importable=f"tests.providers.subjects:docker_{network}",
    )


def docker_bridge() -> ProviderSubject:
    return docker("bridge")


def docker_none() -> ProviderSubject:
    return docker("none")


def uv() -> ProviderSubject:
    from envtorch.providers.uv import UVProvider

    return ProviderSubject(make=lambda: UVProvider(PROBE_PROJECT), importable="tests.providers.subjects:uv")


def kubernetes() -> ProviderSubject:
    from envtorch.providers.kubernetes import KubernetesProvider

    return ProviderSubject(
        make=KubernetesProvider,
        image=PYTHON_IMAGE,
        options={"command": PROBE_COMMAND, "pull": "never", "memory": "128Mi"},
        missing_image="envtorch-no-such-image:1",
        # A kubelet that is told to end a pod which it is just starting does so when it looks again: once a
        # minute by default.
        end_timeout_s=180.0,
        importable="tests.providers.subjects:kubernetes",
    )


def daytona() -> ProviderSubject:
    from tests.providers import fake_daytona

    fake_daytona.install()
    from envtorch.providers.daytona import DaytonaProvider

    return ProviderSubject(
        make=DaytonaProvider,
        image="any:1",
        options={"cmd": shlex.join(PROBE_COMMAND)},
        missing_image="missing:1",
        chooses_port=False,
        ready_timeout_s=PATIENCE_S,
        importable="tests.providers.subjects:daytona",
    )


def ray() -> ProviderSubject:
    from envtorch.providers.ray_provider import RayProvider

    return ProviderSubject(
        make=RayProvider,
        image=PROBE_APP,
        options={"cpus": 0.25},
        chooses_port=False,  # it would be a port of the node
        importable="tests.providers.subjects:ray",
    )
