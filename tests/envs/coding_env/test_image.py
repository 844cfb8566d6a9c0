"""The coding environment's image, built and played on a real engine."""

import json
from typing import Any

import pytest

from envtorch.envs.coding_env import CodeAction, CodingEnv

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]


def test_an_episode_is_played_in_a_container(coding_image: str) -> None:
    with CodingEnv.from_docker_image(coding_image, pull="never", memory="1g", drop_capabilities=True) as env:
        env.reset()
        assert env.step(CodeAction(code="x = 40\nprint('hello')")).observation.stdout == "hello\n"
        assert env.step(CodeAction(code="x + 2")).observation.value == "42"
        crashed = env.step(CodeAction(code="import os; os._exit(3)"))
        assert crashed.done
        env.reset()
        assert env.step(CodeAction(code="'x' in globals()")).observation.value == "False"
        assert env.state().step_count == 1


def test_the_layers_inside_a_container_are_reported(coding_image: str) -> None:
    from envtorch.providers.engine import connect

    code = (
        "from envtorch.sandbox import report; import json; r = report()\n"
        "print(json.dumps([r.grade, dict(r.layers), dict(r.protections)]))"
    )
    client = connect()
    try:
        said = client.containers.run(coding_image, ["python", "-c", code], remove=True, cap_drop=["ALL"])
    finally:
        client.close()
    grade, layers, protections = json.loads(said.decode().splitlines()[-1])
    for name, state in layers.items():
        print(f"{name:22} {state}")
    assert grade == "container"
    assert layers["landlock"] == layers["seccomp"] == layers["capabilities"] == "on"
    assert {name for name, state in protections.items() if state == "on"} >= {
        "filesystem", "memory", "network", "privileges", "processes", "syscalls",
    }  # fmt: skip
    assert protections["fork"].startswith("unavailable: ")


FORKS = """
from envtorch.sandbox import Sandbox
with Sandbox() as sandbox:
    sandbox.run("x = 1")
    made = sandbox.fork(2)
    print(sandbox.report().grade, [fork.run("x").value for fork in made])
    for fork in made:
        fork.close()
"""
WITHOUT_CLONE3 = json.dumps(
    {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}],
    }
)


@pytest.mark.parametrize("profile", ["unconfined", WITHOUT_CLONE3], ids=["clone3", "no clone3"])
def test_a_container_that_allows_namespaces_has_host_grade_and_forks(coding_image: str, profile: str) -> None:
    from envtorch.providers.engine import connect

    client = connect()
    try:
        # What `--security-opt systempaths=unconfined` says on the command line: a fresh /proc may be mounted.
        host: dict[str, Any] = client.api.create_host_config(security_opt=[f"seccomp={profile}"])
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}
        made = client.api.create_container(coding_image, ["python", "-c", FORKS], host_config=host)
        try:
            client.api.start(made["Id"])
            client.api.wait(made["Id"])
            said = client.api.logs(made["Id"])
        finally:
            client.api.remove_container(made["Id"], force=True)
    finally:
        client.close()
    assert said.decode().splitlines()[-1] == "host ['1', '1']", said
