"""An environment with tasks, served: its routes, and `reset(task=...)` by id."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from envtorch import Action, EnvClient, Environment, Observation, State
from envtorch.errors import EnvironmentFailed, InvalidAction
from envtorch.server import create_app
from envtorch.tasks import TaskSet
from tests import patient
from tests.support import Running, running


class Sum(BaseModel):
    question: str
    answer: int


class Reply(Action):
    number: int


class Asked(Observation):
    question: str = ""


class Sums(Environment[Reply, Asked, State]):
    """Asks for one sum."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet(
        Sum,
        {
            "train": [{"question": f"{n} + 1", "answer": n + 1} for n in range(5)],
            "test": [{"id": "hard", "question": "2 + 2", "answer": 4}],
        },
        hidden=["answer"],
    )

    def __init__(self) -> None:
        self._task: Sum | None = None

    def reset(self, task: Sum) -> Asked:
        self._task = task
        return Asked(question=task.question)

    def step(self, action: Reply) -> Asked:
        assert self._task is not None
        return Asked(reward=float(action.number == self._task.answer), done=True)

    @property
    def state(self) -> State:
        return State()


class Open(Sums):
    """Hides nothing."""

    tasks = TaskSet(Sum, [{"question": "1 + 1", "answer": 2}])


class SumsEnv(EnvClient[Reply, Asked, State]): ...


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Sums, env_name="sums", max_concurrent_envs=8)) as served:
        yield served


def ask(server: Running, path: str, **body: Any) -> Any:
    return patient.post(server.url + path, json=body).json()


def test_the_task_routes_serve_a_set_without_its_hidden_fields(server: Running) -> None:
    assert [split["name"] for split in patient.get(server.url + "/sums/splits").json()] == ["train", "test"]
    assert ask(server, "/sums/num_tasks", split="train") == {"num_tasks": 5}
    (task,) = ask(server, "/sums/tasks", split="test")["tasks"]
    assert (task["id"], task["task"]) == ("test/hard", {"question": "2 + 2"})
    assert [t["id"] for t in ask(server, "/sums/task_range", split="train", start=3)["tasks"]] == [
        "train/3",
        "train/4",
    ]
    missing = patient.post(server.url + "/sums/task", json={"split": "train", "index": 5})
    assert (missing.status_code, missing.json()["detail"]) == (400, "Invalid task index")
    unknown = patient.post(server.url + "/sums/tasks", json={"split": "dev"})
    assert unknown.status_code == 422
    assert "there is no split 'dev'; there is train, test" in unknown.text


def test_reset_takes_a_task_by_its_id_or_as_it_was_served(server: Running) -> None:
    served = ask(server, "/sums/task", split="train", index=2)["task"]
    with SumsEnv(server.url) as env:
        assert env.reset(task="test/hard").observation.question == "2 + 2"
        assert env.step(Reply(number=4)).reward == 1.0
        assert env.reset(task=served).observation.question == "2 + 1"
        assert env.step(Reply(number=3)).reward == 1.0


def test_a_task_that_is_not_there_is_the_callers_mistake(server: Running) -> None:
    with SumsEnv(server.url) as env:
        with pytest.raises(InvalidAction, match="there is no task train/9: the split has 5 tasks"):
            env.reset(task="train/9")
        with pytest.raises(InvalidAction, match="named by their id"):
            env.reset(task={"question": "0 + 0", "answer": 0})
        assert env.reset(task="train/0").observation.question == "0 + 1"


@pytest.mark.parametrize("isolation", [None, "process"])
def test_numbers_beyond_any_split_are_the_callers_mistake(isolation: str | None) -> None:
    with running(create_app(Sums, env_name="sums", isolation=isolation)) as served:
        for path, body in (
            ("/reset", {"task": "train/" + "9" * 5000}),
            ("/sums/task", {"split": "train", "index": 10**30}),
            ("/sums/task_range", {"split": "train", "start": 10**30}),
            ("/sums/task_range", {"split": "train", "stop": 10**30}),
        ):
            answer = patient.post(served.url + path, json=body)
            assert 400 <= answer.status_code < 500, (path, answer.text)


def test_a_task_without_hidden_fields_may_be_sent_whole() -> None:
    with SumsEnv.local(Open) as env:
        assert env.reset(task={"question": "3 + 3", "answer": 6}).observation.question == "3 + 3"
        with pytest.raises(InvalidAction, match="does not take this task"):
            env.reset(task={"question": "3 + 3"})
        assert env.reset(task="test/0").observation.question == "1 + 1"


def test_a_bad_file_is_named_to_whoever_asks(tmp_path: Any) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"question": "1 + 1"}\n')

    class Broken(Sums):
        tasks = TaskSet(Sum, path)

    with running(create_app(Broken, env_name="broken")) as server:
        answer = patient.post(server.url + "/broken/tasks", json={"split": "test"})
        assert "tasks.jsonl, line 1: this is not a task: answer: Field required" in answer.text
    with SumsEnv.local(Broken) as env, pytest.raises(EnvironmentFailed, match="line 1: this is not a task"):
        env.reset(task="test/0")


def test_routes_of_an_environment_made_by_a_lambda_have_a_name_for_paths() -> None:
    with running(create_app(lambda: Sums(), Reply, Asked)) as nameless:
        assert patient.get(f"{nameless.url}/list_environments").json() == ["environment"]
        redirected = patient.post(f"{nameless.url}/tasks", json={"split": "train"})
        assert redirected.headers["location"] == "/environment/tasks"
        refused = patient.get(f"{nameless.url}/tasks")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


def test_an_attribute_of_that_name_that_is_something_else_is_left_alone() -> None:
    class Listed(Open):
        tasks = ["a", "b"]  # type: ignore[assignment]

        def reset(self, task: str) -> Asked:  # type: ignore[override]
            return Asked(question=task)

    with SumsEnv.local(Listed) as env:
        assert env.reset(task="b").observation.question == "b"
