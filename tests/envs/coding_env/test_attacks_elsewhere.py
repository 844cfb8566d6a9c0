"""The attack suite through live servers elsewhere: other users, without namespaces, in a real container.

In `make test-slow` a sample of it; all of it with `make test-attacks`, which prints the counts.
"""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.attacks import Target, attacks
from tests.sandbox.elsewhere import start_module
from tests.support import PATIENCE_S, eventually

from .assault import COUNT, laid_to

ROOT = Path(__file__).parents[3]
EVERY_DAY = range(0, COUNT, 12)
MODULE = "tests.envs.coding_env.siege_server"
ORDINARY = 65532
"""The kernel counts a user's processes in all containers together, and other tests run as nobody."""
HARDENED = {"user": str(ORDINARY), "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
CONTAINERS = [
    pytest.param({}, id="a default container"),
    pytest.param(HARDENED, id="a container without any right"),
]


def _assault(told: dict[str, Any], url: str, numbers: range) -> None:
    def unharmed() -> bool:
        with urllib.request.urlopen(f"{url}/siege", timeout=PATIENCE_S) as answer:
            return bool(json.load(answer)["unharmed"])

    target = Target(**told["target"])
    contained: list[str] = []
    failures: list[str] = []
    with laid_to(url, target, unharmed) as siege:
        for attack in attacks(target)[numbers.start : numbers.stop : numbers.step]:
            try:
                siege.carry_out(attack)
                contained.append(attack.name)
            except AssertionError as error:
                failures.append(str(error))
    where = f"user {told['user']}, {told['grade']} grade"
    print(f"\n{len(contained)} of {len(numbers)} attacks on a live server contained: {where}")
    assert failures == []


@contextmanager
def _server_as(user: int, *options: str) -> Iterator[dict[str, Any]]:
    with start_module(MODULE, *options, user=user) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def _attack_as(user: int, grade: str, numbers: range) -> None:
    with _server_as(user, *(["--container"] if grade == "container" else [])) as told:
        if told["grade"] != grade:
            pytest.skip(f"user {user} gets {told['grade']} grade here")
        assert told["user"] == user
        _assault(told, f"http://127.0.0.1:{told['port']}", numbers)


USERS = pytest.mark.parametrize(
    ("user", "grade"),
    [(0, "host"), (ORDINARY, "host"), (0, "container"), (ORDINARY, "container")],
    ids=["root", "ordinary user", "root without namespaces", "ordinary user without namespaces"],
)


@pytest.mark.slow
@USERS
def test_a_sample_is_contained(sandboxes: None, user: int, grade: str) -> None:
    _attack_as(user, grade, EVERY_DAY)


@pytest.mark.attacks
@pytest.mark.timeout(1800)
@USERS
def test_every_attack_is_contained(sandboxes: None, user: int, grade: str) -> None:
    _attack_as(user, grade, range(COUNT))


@contextmanager
def _server_in_container(image: str, options: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    from envtorch.providers.engine import connect

    client = connect()
    settings: dict[str, Any] = {
        "volumes": {str(ROOT / "tests"): {"bind": "/attacks/tests", "mode": "ro"}},
        "environment": {"PYTHONPATH": "/attacks"},
        "ports": {"8000/tcp": ("127.0.0.1", None)},
        "labels": {"org.envtorch.test": "attacks"},
        **options,
    }
    command = ["python", "-B", "-m", MODULE, "--host", "0.0.0.0", "--port", "8000"]
    container = client.containers.run(image, command, detach=True, **settings)
    try:
        eventually(
            lambda: b'"port": 8000' in container.logs(), "the server in the container is up", PATIENCE_S
        )
        (line,) = [line for line in container.logs().splitlines() if line.startswith(b"{")]
        container.reload()
        port = container.attrs["NetworkSettings"]["Ports"]["8000/tcp"][0]["HostPort"]
        yield json.loads(line), f"http://127.0.0.1:{port}"
    finally:
        container.remove(force=True)
        client.close()


def _attack_in_container(image: str, options: dict[str, Any], numbers: range) -> None:
    with _server_in_container(image, options) as (told, url):
        assert told["grade"] == "container"
        layers = told["layers"]
        assert layers["landlock"] == layers["seccomp"] == layers["no_new_privs"] == "on", layers
        _assault(told, url, numbers)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", CONTAINERS)
def test_a_sample_is_contained_in_a_container(coding_image: str, options: dict[str, Any]) -> None:
    _attack_in_container(coding_image, options, EVERY_DAY)


@pytest.mark.docker
@pytest.mark.attacks
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", CONTAINERS)
def test_every_attack_is_contained_in_a_container(coding_image: str, options: dict[str, Any]) -> None:
    _attack_in_container(coding_image, options, range(COUNT))
