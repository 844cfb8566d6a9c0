"""A test client without a lifespan has an event loop for each request, and OpenEnv's users test so."""

from starlette.testclient import TestClient

from envtorch.env import Environment
from envtorch.server import create_app
from envtorch.types import Action, Observation, State


class Counting(Environment[Action, Observation, State]):
    """Plain methods, so it lives on a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self._state = State(episode_id=episode_id)
        return Observation()

    def step(self, action: Action) -> Observation:
        self._state.step_count += 1
        return Observation(reward=float(self._state.step_count))

    @property
    def state(self) -> State:
        return self._state


def test_requests_of_one_session_may_come_from_many_loops() -> None:
    client = TestClient(create_app(Counting))
    client.post("/reset", json={})
    assert [client.post("/step", json={"action": {}}).json()["reward"] for _ in range(3)] == [1.0, 2.0, 3.0]
    assert client.get("/state").json()["step_count"] == 3
