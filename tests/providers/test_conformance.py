"""Every provider keeps the same contract: the shipped checks, one test each.

The process provider is checked in `make test`, those that install or start images in `make test-slow`.
"""

import pytest

from envtorch.testing import PROVIDER_CHECKS, ProviderCheck, ProviderSubject, Skipped
from tests.providers import subjects


def keep(check: ProviderCheck, subject: ProviderSubject) -> None:
    try:
        check.run(subject)
    except Skipped as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=str)
def test_process(check: ProviderCheck) -> None:
    keep(check, subjects.process())


@pytest.mark.slow
@pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=str)
def test_uv(check: ProviderCheck) -> None:
    keep(check, subjects.uv())


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=str)
def test_docker(check: ProviderCheck) -> None:
    keep(check, subjects.docker_bridge())


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=str)
def test_docker_without_network(check: ProviderCheck) -> None:
    keep(check, subjects.docker_none())


@pytest.mark.kubernetes
@pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=str)
def test_kubernetes(check: ProviderCheck) -> None:
    keep(check, subjects.kubernetes())


def test_the_suite_is_a_suite() -> None:
    names = [check.name for check in PROVIDER_CHECKS]
    assert len(names) == len(set(names)) >= 30
