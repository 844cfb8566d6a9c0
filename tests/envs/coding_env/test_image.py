"""The coding environment's image, built and played on a real engine."""

import json

import pytest

from envtorch.envs.coding_env import CodeAction, CodingEnv

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


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
