"""What the first EnvTorch's README promised: dataclass models, an instance, and an HTTP client with hooks."""

from dataclasses import dataclass
from typing import Any

from envtorch import Action, Environment, HTTPEnvClient, Observation, State, StepResult, create_fastapi_app
from tests.support import PATIENCE_S, running


@dataclass
class MyAction(Action):
    command: str
    parameters: dict[str, Any]


@dataclass
class MyObservation(Observation):
    result: str
    success: bool


class MyEnvironment(Environment):
    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self) -> MyObservation:
        self._state = State(episode_id="first")
        return MyObservation(result="Ready", success=True)

    def step(self, action: MyAction) -> MyObservation:
        self._state.step_count += 1
        return MyObservation(result=f"{self._state.step_count}: {action.command}", success=True, reward=1.0)

    @property
    def state(self) -> State:
        return self._state


class MyEnv(HTTPEnvClient[MyAction, MyObservation]):
    def _step_payload(self, action: MyAction) -> dict[str, Any]:
        return {"command": action.command, "parameters": action.parameters}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[MyObservation]:
        obs = MyObservation(**payload["observation"])
        return StepResult(observation=obs, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


def test_an_episode_of_several_steps_keeps_its_state() -> None:
    env = MyEnvironment()
    app = create_fastapi_app(env, MyAction, MyObservation)
    with running(app) as server:
        client = MyEnv(base_url=server.url)
        assert client.reset().observation.result == "Ready"
        seen = [client.step(MyAction(command=c, parameters={"n": 1})).observation.result for c in "abc"]
        assert seen == ["1: a", "2: b", "3: c"]
        assert client.state().step_count == 3
        client.close()
    assert env.state.step_count == 3, "an instance is one shared environment"


def test_an_instance_is_shared_by_every_client() -> None:
    with running(create_fastapi_app(MyEnvironment(), MyAction, MyObservation)) as server:
        one, two = MyEnv(server.url), MyEnv(server.url)
        one.reset()
        one.step(MyAction(command="a", parameters={}))
        two.step(MyAction(command="b", parameters={}))
        assert one.state().step_count == 2
        with server.socket() as socket:
            socket.send('{"type":"state"}')
            assert '"step_count":2' in str(socket.recv(timeout=PATIENCE_S))
        one.close()
        assert two.state().step_count == 2
        two.close()
