"""OpenEnv's blocking client: round trips (`step`, `pictures`), and sessions opened and reset (`open`)."""

from types import SimpleNamespace
from typing import Any

import numpy
from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from bench.clients.timing import asked, repeat, tell
from bench.servers.environment import echo, pictures

BASE = SimpleNamespace(Action=Action, Observation=Observation, State=State, Environment=Environment)
JOB = asked()
SHOWS = JOB["what"] == "pictures"
_, Say, Said = pictures(BASE, as_lists=True) if SHOWS else echo(BASE, "thread")


class EchoEnv(EnvClient):  # type: ignore[misc]
    """A client as OpenEnv's authors write them."""

    def _step_payload(self, action: Any) -> dict[str, Any]:
        return {"message": action.message, "size": action.size}

    def _parse_result(self, payload: dict[str, Any]) -> Any:
        observation = Said(**payload["observation"], reward=payload["reward"], done=payload["done"])
        if SHOWS and observation.picture is not None:
            observation.picture = numpy.asarray(observation.picture, dtype=numpy.uint8)
        return StepResult(observation=observation, reward=payload["reward"], done=payload["done"])

    def _parse_state(self, payload: dict[str, Any]) -> Any:
        return State(**payload)


def main() -> None:
    job = JOB

    def open_one() -> Any:
        env = EchoEnv(base_url=job["url"]).sync()
        env.reset()
        return env

    if job["what"] == "open":
        tell(repeat(lambda: open_one().close(), job["seconds"], warm_up=5))
        return
    with EchoEnv(base_url=job["url"]).sync() as env:
        env.reset()
        action = Say(message="hello", size=job.get("size", 0))
        assert env.step(action).reward == 1.0
        tell(repeat(lambda: env.step(action), job["seconds"], warm_up=job.get("warm_up", 50)))


if __name__ == "__main__":
    main()
