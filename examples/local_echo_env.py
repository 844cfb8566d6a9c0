"""The echo environment on this machine, by a provider. Run: python examples/local_echo_env.py [docker]

Without an argument the server is a child process. With `docker` the image is built first (a minute the
first time), then played in a container with no network, little memory and a read-only root.
"""

import sys

from envtorch.envs.echo_env import EchoAction, EchoEnv


def play(env: EchoEnv) -> float:
    print(f"a server at {env.base_url}")
    total = 0.0
    print(env.reset(seed=7).observation.echoed_message)
    for message in ("Hello, World!", "Testing the echo environment", "One more message"):
        result = env.step(EchoAction(message=message))
        print(f"  {result.observation.echoed_message!r:34} reward {result.reward:.1f}")
        total += result.reward or 0.0
    print(f"{env.state().step_count} steps, return {total:.1f}")
    return total


def in_a_process() -> float:
    with EchoEnv.from_docker_image("envtorch.envs.echo_env.app:app", provider="process") as env:
        return play(env)


def in_a_container() -> float:
    from envtorch.providers.build import build_base, build_environment

    build_base(on_line=print)
    build_environment("echo_env")
    with EchoEnv.from_docker_image(
        "echo-env:latest", network="none", memory="512m", pids=64, read_only=True, drop_capabilities=True
    ) as env:
        return play(env)


if __name__ == "__main__":
    in_a_container() if sys.argv[1:] == ["docker"] else in_a_process()
